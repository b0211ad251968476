"""The documentation's build: ``make docs``. Warnings are errors."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import celery_idem  # noqa: E402 - found by the line above

project = "celery_idem"
author = "The celery-idem authors"
copyright = f"2026, {author}"
version = release = celery_idem.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "celery_idem"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False
# a prompt and the answers below it are not for the clipboard
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
nitpicky = False


# -- the cases, each with the tests that name it


def write_cases(app: Sphinx) -> None:
    """``cases.md`` from ``cases.csv`` and from what the tests quote."""
    tests = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    lines = [
        "# Cases",
        "",
        "Public reports of what went wrong in production, with Celery or a relative of it,",
        "each retold as a scenario with an outcome that is required. Where a test names a number,",
        "that outcome is tested. The list of tests is made from the tests themselves.",
        "",
        "| case | what happened to others | report | tests |",
        "|---|---|---|---|",
    ]
    with (ROOT / "docs" / "cases.csv").open(newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            # quoted in a docstring, or in a test's name: test_c27_…
            quoted = re.compile(rf"(?i)(?<![a-z0-9]){row['case']}(?![0-9])")
            found = [p for p, text in tests.items() if quoted.search(text)]
            names = "<br>".join(f"`{p.relative_to(ROOT / 'tests')}`" for p in found) or "none yet"
            project, _, number = row["report"].partition("#")
            link = f"[{row['report']}](https://github.com/{project}/issues/{number})"
            lines.append(f"| {row['case']} | {row['what happened']} | {link} | {names} |")
    (ROOT / "docs" / "cases.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


# -- pages that the index does not name yet


def list_the_rest(app: Sphinx, docname: str, source: list[str]) -> None:
    """Every page is in the index: one that it does not name is under "More"."""
    if docname != "index":
        return
    named = set(source[0].splitlines()) | {"index"}
    rest = sorted({path.stem for path in (ROOT / "docs").glob("*.md")} - named)
    if rest:
        lines = ["", "```{toctree}", ":caption: More", ":maxdepth: 1", "", *rest, "```", ""]
        source[0] += "\n".join(lines)


def read_again(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """The index has to be read again when a page comes or goes."""
    return ["index"] if added or removed else []


def setup(app: Sphinx) -> None:
    app.connect("env-get-outdated", read_again)
    app.connect("builder-inited", write_cases)
    app.connect("source-read", list_the_rest)
