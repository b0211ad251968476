"""``python -m chaos --minutes 10 --seed 7``: break everything, and look what holds."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.report import figures, page, summary
from chaos.run import Outcome, Plan, run
from chaos.stage import LEGS

logger = logging.getLogger("chaos")


def main(argv: Sequence[str] | None = None) -> int:
    """0: every promise held on every broker; 1: one was broken."""
    given = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("celery_idem").setLevel(logging.ERROR)
    outcomes: list[Outcome] = []
    for name in given.broker:
        plan = Plan(
            LEGS[name], given.minutes * 60, given.seed, given.workers, given.rate, given.gap
        )
        if given.schedule:
            sys.stdout.write("\n".join([plan.leg.title, *map(str, plan.faults()), ""]))
            continue
        with _folder(given.keep, name) as directory:
            outcomes.append(run(plan, Path(directory)))
        sys.stdout.write(summary(outcomes[-1]) + "\n")
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(page(outcomes), encoding="utf-8")
    if outcomes and given.figures is not None:
        given.figures.write_text(figures(outcomes) + "\n", encoding="utf-8")
    if outcomes:
        sys.stdout.write(f"report: {given.report}\n")
    return 0 if all(outcome.verdict.holds for outcome in outcomes) else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of load, on each broker")
    parser.add_argument("--seed", type=int, default=7, help="of the faults and of the orders")
    parser.add_argument(
        "--broker", action="append", choices=list(LEGS), help="may be given often; default: all"
    )
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=15.0, help="jobs a second")
    parser.add_argument("--gap", type=float, default=4.0, help="mean seconds between two faults")
    parser.add_argument("--report", type=Path, default=Path("chaos-report.html"))
    parser.add_argument("--figures", type=Path, help="write the figures as Markdown, too")
    parser.add_argument("--keep", type=Path, help="keep ledgers and logs in this folder")
    parser.add_argument("--schedule", action="store_true", help="show the faults, and end")
    given = parser.parse_args(argv)
    given.broker = given.broker or list(LEGS)
    return given


def _folder(keep: Path | None, name: str) -> tempfile.TemporaryDirectory[str] | _Kept:
    if keep is None:
        return tempfile.TemporaryDirectory(prefix=f"chaos-{name}-")
    return _Kept(keep / name)


class _Kept:
    """A folder that stays."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> str:
        self.path.mkdir(parents=True, exist_ok=False)
        return str(self.path)

    def __exit__(self, *exc_info: object) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())
