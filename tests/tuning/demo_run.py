"""The demo's run with a lease of one's choice, and what ``idem tune`` says of it, as JSON.

``python -m tests.tuning.demo_run FOLDER [--lease S] [--no-faults]``; a process of its own, because
the demo's shop is a Django project.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from example_project import stockroom
from example_project.chaos import BLOWS
from example_project.demo import read_options, trade
from example_project.family import Family
from example_project.figures import Reader
from example_project.ledger import settle_up
from example_project.premises import Premises
from example_project.view import view_for

DEADLINE_S = 120


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lease", default="30")
    parser.add_argument("--no-faults", action="store_true")
    given = parser.parse_args()
    faults = ["--no-faults"] if given.no_faults else []
    options = read_options(["--orders", "60", "--seed", "7", *faults])
    with Family() as family:
        shop = Premises(given.folder, family, settings={"SHOP_LEASE_S": given.lease})
        reader = Reader(shop.books, shop.gateway)
        shop.open(options.workers)
        shop.wait_ready(reader)
        begun = time.monotonic()
        customers = trade(options, shop, reader, view_for())
        kills = 0 if given.no_faults else len(BLOWS)
        ledger = settle_up(customers, reader, stockroom.count(), kills, time.monotonic() - begun)
        said = {
            "faults": ledger.faults,
            "kills": [(kill.what, kill.restarted_s) for kill in ledger.kills],
            "tune": tuned(),
        }
    sys.stdout.write("\n" + json.dumps(said) + "\n")


def tuned() -> Any:
    """What the command says, asked as a user asks it."""
    command = ["-A", "example_project.watched_shop", "idem", "tune", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "celery", *command],
        env=os.environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
