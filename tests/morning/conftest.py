"""The shop after a bad night: its processes, its environment, what the world has seen."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.demo.stage import ROOT, Stage, stage
from tests.support.processes import env_without_django
from tests.support.servers import missing_redis
from tests.support.waiting import wait_until

DEADLINE_S = 300


@dataclass(frozen=True, slots=True)
class Shop:
    """``make shop``, after the night."""

    running: Stage
    base: str
    password: str
    env: dict[str, str]

    def python(self, *words: str) -> str:
        """Run a module of the example in the shop's environment."""
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=self.env, capture_output=True, text=True,
            timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def groups(self) -> dict[str, str]:
        """Error → its group; asked by a program, not by the operator."""
        found = json.loads(self._dlq("groups", "--json"))
        return {it["error"].rpartition(".")[2]: it["group"] for it in found}

    def letters(self, group: str) -> list[str]:
        """Ids of a group's letters, the newest first."""
        found = json.loads(self._dlq("list", "--group", group, "--limit", "500", "--json"))
        return [it["id"] for it in found]

    def _dlq(self, *words: str) -> str:
        return self.python("-m", "celery", "-A", "example_project.shop", "dlq", *words)

    def end_of_the_night(self) -> None:
        """The gateway opens again."""
        self.python("-m", "example_project.night", "--over")

    def paid(self) -> dict[int, tuple[str, str]]:
        """Order of the night → product and status."""
        with sqlite3.connect(self._file("shop.sqlite3")) as db:
            rows = db.execute(
                "SELECT number, name, status FROM shop_order JOIN shop_product"
                " ON shop_product.id = product_id WHERE number >= 7000001"
            ).fetchall()
        return {number: (product, status) for number, product, status in rows}

    def wait_paid(self, count: int) -> None:
        wait_until(
            lambda: sum(status == "paid" for _, status in self.paid().values()) == count,
            DEADLINE_S,
            lambda: f"{count} paid orders; there are {len(self.paid())}",
        )

    def mails(self) -> list[int]:
        """Orders of which a receipt was mailed, one for each mail."""
        return self._of_the_night("SELECT order_id FROM mails")

    def charges(self) -> list[int]:
        """Orders whose card was charged, one for each time that money moved."""
        return self._of_the_night("SELECT order_id FROM charges")

    def _of_the_night(self, query: str) -> list[int]:
        with sqlite3.connect(self._file("gateway.sqlite3")) as db:
            return sorted(it for (it,) in db.execute(query).fetchall() if it >= 7_000_001)

    def _file(self, name: str) -> Path:
        return Path(self.env["SHOP_BOOKS"]).parent / name


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Opened, and through the night: 240 orders are dead letters, the gateway is closed."""
    if reason := missing_redis():
        pytest.skip(reason)
    if importlib.util.find_spec("django") is None:
        pytest.skip("Django is not installed")
    with stage("serve", tmp_path) as running:
        running.wait_text("Ctrl-C ends everything")
        base, password = re.search(  # type: ignore[union-attr]
            r"(http://\S+)/admin/ +visitor +(\S+)", running.text()
        ).groups()
        env_file = Path(re.search(r"^  \. (\S+)$", running.text(), re.MULTILINE)[1])  # type: ignore[index]
        exports = dict(
            shlex.split(line.removeprefix("export "))[0].split("=", 1)
            for line in env_file.read_text().splitlines()
        )
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**env_without_django(), **exports, "PATH": path, "PYTHONIOENCODING": "utf-8"}
        opened = Shop(running, base, password, env)
        opened.python("-m", "example_project.night")
        yield opened
