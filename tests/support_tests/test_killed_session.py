"""A test session that is killed runs no finalizer: what it has started ends all the same."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from tests.morning.terminal import TMUX
from tests.support import leftovers
from tests.support.processes import end_group, spawn
from tests.support.servers import missing_redis
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

SHOP = """
import signal, sys
from pathlib import Path
from tests.demo.stage import Stage
print(Stage("serve", Path(sys.argv[1])).mark, flush=True)
signal.pause()
"""
TERMINAL = """
import os, signal, sys
from pathlib import Path
from tests.morning.terminal import Terminal
with Terminal(Path(sys.argv[1]), os.environ, Path.cwd()) as terminal:
    terminal.run("echo it works")
    print("mark", flush=True)
    signal.pause()
"""

pytestmark = pytest.mark.platform("linux")


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_redis()), reason=str(missing_redis()))
def test_the_shop_and_its_servers_end_with_a_killed_session(tmp_path: Path) -> None:
    pytest.importorskip("django")
    mark = killed_when_it_runs(SHOP, tmp_path, "celery")

    wait_gone(mark)


@pytest.mark.skipif(TMUX is None, reason="no tmux")
def test_a_terminal_ends_with_a_killed_session(tmp_path: Path) -> None:
    mark = killed_when_it_runs(TERMINAL, tmp_path, "tmux")

    wait_gone(mark)


def wait_gone(mark: str) -> None:
    try:
        wait_until(
            lambda: not leftovers.left_behind(mark),
            30,
            lambda: f"the end of {leftovers.left_behind(mark)}",
        )
    finally:
        leftovers.end_all(mark)


def killed_when_it_runs(code: str, folder: Path, program: str) -> str:
    """Start it, kill it once it has started this program; the mark of what it has started."""
    mark = uuid.uuid4().hex
    env = {**os.environ, "PYTHONPATH": str(ROOT), leftovers.ENV: mark}
    log = folder / "session.log"
    session = spawn([sys.executable, "-c", code, str(folder)], log, cwd=ROOT, env=env)
    try:
        said = wait_until(log.read_text, 60, "what it says").split()[0]
        mark = said if said != "mark" else mark
        wait_until(
            lambda: any(program in line for line in leftovers.left_behind(mark)),
            90,
            lambda: f"{program} among {leftovers.left_behind(mark)}: {log.read_text()}",
        )
        session.send_signal(signal.SIGKILL)
        session.wait(30)
    finally:
        end_group(session)
    return mark
