"""``idem tune`` on the demo's run: what it proposes recovers a killed worker, without overlap."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support import leftovers
from tests.support.processes import env_without_django, guarded
from tests.support.servers import missing_redis

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240
#: A message of a dead worker is looked for this often, in seconds, and a machine that is many times
#: slower than usual starts the job so much later.
LOOK_S, SLOW_S = 2.0, 20.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing_redis()), reason=str(missing_redis())),
]


def demo_run(folder: Path, *options: str) -> Any:
    folder.mkdir()
    mark = uuid.uuid4().hex
    own = {leftovers.ENV: mark, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"}
    try:
        done = subprocess.run(
            guarded([sys.executable, "-m", "tests.tuning.demo_run", str(folder), *options]),
            cwd=ROOT, env=env_without_django() | own, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    finally:
        leftovers.end_all(mark)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_proposed_lease_recovers_a_killed_worker_within_it_and_nothing_overlaps(tmp_path):
    """S-V7 and S-V5: measured with the default lease of 30 s, then lived with."""
    measured = demo_run(tmp_path / "measured", "--no-faults")
    assert measured["faults"] == []
    [task] = [t for t in measured["tune"]["tasks"] if t["task"] == "shop.complete_order"]
    assert 0 < task["p50_s"] <= task["p99_s"] <= task["longest_s"]
    [lease] = [p for p in measured["tune"]["proposals"] if p["setting"] == "lease_s"]
    assert lease["now"] == 30
    assert lease["proposed"] is not None

    lived = demo_run(tmp_path / "lived", "--lease", str(lease["proposed"]))

    # the ledger has no order that was run again without a crash, charged twice, or asked twice
    assert lived["faults"] == []
    restarted_s = [seconds for what, seconds in lived["kills"] if what == "worker"]
    assert restarted_s
    assert all(seconds is not None for seconds in restarted_s)
    assert max(restarted_s) <= lease["proposed"] + LOOK_S + SLOW_S
