"""On projects with every mistake of the list, ``check`` finds each and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import VERSION

from celery_idem.doctor.checks import CHECKS
from tests.doctor.conftest import PATIENCE_S

MISTAKES = Path(__file__).with_name("mistakes")
_EXPECTED = re.compile(r"# expect: (IDEM\d{3})")
#: made only on Celery 5.7, which has two settings where 5.5 has one (tests/doctor/test_delivery.py)
ELSEWHERE = {"IDEM023"}

Document = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the project is: in a package of its own, because its neighbours are read as well."""
    pytest.importorskip("django")
    (tmp_path / "shop").mkdir()
    for name in ("__init__", "running"):
        shutil.copy(MISTAKES / f"{name}.py", tmp_path / "shop")
    return tmp_path


@pytest.fixture
def check(folder: Path) -> Callable[..., Document]:
    """``check("redis_shop", broker, …)``: the report of ``celery idem check --json``."""

    def call(name: str, broker: str, *words: str) -> Document:
        shutil.copy(MISTAKES / f"{name}.py", folder / "shop")
        done = subprocess.run(
            [
                sys.executable, "-m", "celery", "-A", f"shop.{name}:app", "idem", "check", "--json",
                "--timeout", str(PATIENCE_S), *words,
            ],
            cwd=folder, capture_output=True, text=True, timeout=110,
            env={**os.environ, "TEST_BROKER": broker, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        return dict(json.loads(done.stdout))

    return call


def expected(name: str) -> tuple[Counter[tuple[str, int]], dict[str, str]]:
    """(id, line) of what is marked in a project, and id → setting of what has no line."""
    text = (MISTAKES / f"{name}.py").read_text()
    marked: Counter[tuple[str, int]] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        marked.update((it, number) for it in _EXPECTED.findall(line))
    listed = re.search(r"^NO_LINE(?:: [^=]*)? = (\{.*?\})", text, re.DOTALL | re.MULTILINE)
    assert listed is not None
    return marked, dict(eval(listed.group(1)))


def compare(document: Document, name: str) -> None:
    found = document["findings"]
    marked, without_line = expected(name)
    lines = Counter((it["id"], it["line"]) for it in found if it["line"])
    assert lines - marked == Counter(), [it for it in found if (it["id"], it["line"]) not in marked]
    assert marked - lines == Counter()
    lineless = {it["id"]: it["setting"] for it in found if not it["line"]}
    assert lineless.keys() == without_line.keys()
    # an older Celery comes with an older kombu, and either has its fault
    wanted = {**without_line, **({"IDEM070": lineless["IDEM070"]} if "IDEM070" in lineless else {})}
    assert lineless == wanted
    assert document["not_checked"] == []
    assert [it["id"] for it in found if not it["remedy"]] == []


def test_every_mistake_on_redis_is_found_and_nothing_else(
    check, folder, make_redis, start_worker, clock_skew
):
    """C04 and C22 among them: a foreign app on the database, a server that evicts and forgets."""
    server = make_redis(
        "cache", durable=False, extra=["--maxmemory", "90mb", "--maxmemory-policy", "allkeys-lru"]
    )
    env = {"TEST_BROKER": server.url(), "PYTHONPATH": str(folder)}
    clock_skew.set(60)
    start_worker("shop.running:others", queues=["theirs"], cwd=folder, env=env)
    start_worker(
        "shop.running:before", queues=["critical", "low"], cwd=folder,
        env={**env, **clock_skew.env},
    )  # fmt: skip

    document = check("redis_shop", server.url())

    compare(document, "redis_shop")


@pytest.mark.rabbitmq
def test_every_mistake_on_rabbitmq_is_found_and_nothing_else(check, rabbitmq, monkeypatch):
    document = check("rabbit_shop", rabbitmq.url, "--ignore", "IDEM060")

    compare(document, "rabbit_shop")


def test_settings_that_can_not_be_read_are_found_and_nothing_else(check, make_redis):
    document = check("unreadable", make_redis("careful").url(), "--ignore", "IDEM060",
                     "--ignore", "IDEM070")  # fmt: skip

    compare(document, "unreadable")


def test_every_check_has_its_mistake():
    made = set(ELSEWHERE)
    for name in ("redis_shop", "rabbit_shop", "unreadable"):
        marked, without_line = expected(name)
        made |= {check for check, _ in marked} | without_line.keys()

    assert made == {check.id for check in CHECKS}


def test_a_version_with_a_fault_is_among_them():
    """IDEM070 is expected of the Redis project on every leg: 5.7.0 and those before 5.6.3."""
    assert VERSION[:3] == (5, 7, 0) or VERSION < (5, 6, 3), "see IDEM070 for this version"
