# Each target prepares what it needs by itself, in $(VENV), and again when pyproject.toml changes.
# Another Python: make test PYTHON=python3.12 VENV=.venv-3.12
# Only some tests: make test ARGS="tests/core -x"
# Those too that take more than ten seconds each: make test SLOW=1
# A skip is a failure: make test REQUIRE_ALL=1

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Tests wait more than they compute: so many at once, module by module
JOBS ?= 4
PY := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help demo shop test lint bench chaos model mutate docs clean
.SECONDARY:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.ready-demo ## run the example shop and kill its workers: nothing lost, nothing twice
	@$(PY) -m example_project.demo $(ARGS)

shop: $(VENV)/.ready-demo ## open the example shop: web site, admin, worker; Ctrl-C closes it
	@$(PY) -m example_project.serve $(ARGS)

test: $(VENV)/.ready-test ## run all tests; what is absent here is skipped with its reason
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(if $(SLOW),,-m "not slow") $(ARGS)

lint: $(VENV)/.ready-lint ## ruff (rules and format) and mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: $(VENV)/.ready-bench ## measure side by side with plain Celery and other packages
	@$(PY) -m benchmarks $(ARGS)

MINUTES ?= 10
SEED ?= 7
chaos: $(VENV)/.ready-test ## MINUTES=10 SEED=7: break everything on every broker, and count effects
	@$(PY) -m chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

model: $(VENV)/.ready-cli ## search every interleaving of the claim protocol up to a bound (minutes)
	@$(PY) -m model $(ARGS)

mutate: $(VENV)/.ready-mutate ## change each rule and each Lua line: does a test notice? (hours)
	@for room in store transport visibility deadletters; do $(PY) -m mutation --room $$room $(ARGS); done
	@$(VENV)/bin/mutmut run

docs: $(VENV)/.ready-docs ## build the documentation into docs/_build
	@$(PY) -m sphinx -W -q -b html docs docs/_build
	@echo "docs/_build/index.html"

clean: ## remove the virtual environment and built files
	@rm -rf .venv build dist docs/_build

# the stamp is named for the extra: a demo does not wait for what only tests need
$(VENV)/.ready-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "celery-idem needs Python 3.10 or later; give one: make $* PYTHON=python3.x"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) \
	  || { echo "no venv module (Debian: apt-get install python3-venv)"; exit 1; }
	@echo "Installing what 'make $*' needs into $(VENV) (once; a minute or so) ..."
	@$(PY) -m pip install -q --disable-pip-version-check -e '.[$*]'
	@touch $@
