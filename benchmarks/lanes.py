"""``python -m benchmarks.lanes``: shares, waits and throughput of lanes beside stock Celery.

Writes ``docs/benchmarks-lanes.md`` and the pictures in ``docs/pictures``. Needs Redis' binary and a
RabbitMQ; about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.lanes_pictures import draw_flood, draw_shares
from benchmarks.lanes_run import (
    LANES,
    WEIGHTS,
    Setup,
    Start,
    critical_under_flood,
    serve_backlog,
    weighted,
)
from benchmarks.report import Section, middle, with_range

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: Starts over which shares are counted, and the size of a window: ten rounds of 10:5:1.
FIRST, WINDOW = 1600, 160
RESERVED = {"critical": {"weight": 10, "reserve": 1}, "normal": 5, "low": 1}

INTRODUCTION = """\
# Lanes, measured

Made by `python -m benchmarks.lanes`: real brokers, real workers; every start is noted in a file
outside the broker. Shares and orders do not depend on the machine; throughput is a ratio of runs
that took turns. Which weights to choose: [Choosing weights](lanes.md).

"""


def shares(backlog: int, workers: Sequence[int]) -> tuple[Section, dict[str, list[Start]]]:
    """Who gets how much of the first starts of three equal backlogs."""
    section = Section(
        f"Shares of the first {FIRST:,} starts, three backlogs of {backlog:,}",
        ("", "critical", "normal", "low", "error", "worst window", "first low"),
        notes=[
            "*error*: the largest distance of a lane's share from 10:5:1, in points of a hundred. "
            f"*worst window*: the same over any {WINDOW} starts in a row. "
            "*first low*: how many started before the first low job: at most 16 fetches a worker, "
            "and what its processes start before RabbitMQ has handed the first one over. Jobs of "
            "2 ms, two processes a worker, `acks_late`, prefetch multiplier 1 for stock."
        ],
    )
    setups = [
        *(Setup(f"Redis, {order}", "redis", None, order)
          for order in ("round_robin", "sorted", "priority")),
        *(weighted(f"**Redis, lanes, {count} worker{'s' * (count > 1)}**", "redis", workers=count)
          for count in workers),
        Setup("RabbitMQ, stock", "rabbitmq"),
        *(weighted(f"**RabbitMQ, lanes, {count} worker{'s' * (count > 1)}**", "rabbitmq",
                   workers=count) for count in workers),
        weighted("**RabbitMQ quorum, lanes, 1 worker**", "quorum"),
    ]  # fmt: skip
    runs: dict[str, list[Start]] = {}
    for setup in setups:
        _say(setup.name)
        starts = serve_backlog(
            setup, dict.fromkeys(LANES, backlog), dict.fromkeys(LANES, 0.002)
        ).starts
        runs[setup.name.strip("*")] = starts
        section.rows.append(_share_row(setup.name, [start.lane for start in starts[:FIRST]]))
    return section, runs


def _share_row(name: str, order: list[str]) -> tuple[str, ...]:
    counts = Counter(order)
    windows = [order[at : at + WINDOW] for at in range(len(order) - WINDOW + 1)]
    first_low = str(order.index("low")) if "low" in order else "none"
    return (
        name,
        *(str(counts[lane]) for lane in LANES),
        f"{_error(order):.1f}",
        f"{max(_error(window) for window in windows):.1f}",
        first_low,
    )


def _error(order: list[str]) -> float:
    counts, whole = Counter(order), sum(WEIGHTS.values())
    return max(100 * abs(counts[lane] / len(order) - WEIGHTS[lane] / whole) for lane in LANES)


def seconds() -> Section:
    """Shares of the workers' time when low jobs take twenty times longer."""
    section = Section(
        "Low jobs twenty times longer: shares of the workers' time",
        ("", "critical", "normal", "low"),
        notes=["Jobs of 20 ms, low ones of 400 ms; the first 40 s of four processes' time. "
               "Ideal: 62.5, 31.2, 6.2 %."],
    )  # fmt: skip
    counts = {"critical": 2200, "normal": 1200, "low": 100}
    busy_s = {"critical": 0.02, "normal": 0.02, "low": 0.4}
    for broker, title in (("redis", "Redis"), ("rabbitmq", "RabbitMQ")):
        for charge in ("messages", "seconds"):
            setup = weighted(f'{title}, charge="{charge}"', broker, charge=charge, processes=4)
            _say(setup.name)
            section.rows.append(
                (setup.name, *_time_shares(serve_backlog(setup, counts, busy_s).starts))
            )
    return section


def _time_shares(starts: list[Start], limit_s: float = 40.0) -> tuple[str, ...]:
    used: Counter[str] = Counter()
    for start in starts:
        if sum(used.values()) >= limit_s:
            break
        used[start.lane] += start.busy_s  # type: ignore[assignment]
    whole = sum(used.values())
    return tuple(f"{used[lane] / whole:.1%}" for lane in LANES)


def flood(rounds: int, span_s: float) -> tuple[Section, dict[str, list[float]]]:
    """How long critical jobs wait while low ones never run out."""
    section = Section(
        "Critical jobs, 20 a second, under a flood of low ones: wait until the start",
        ("", "low jobs of", "p50 (ms)", "p99 (ms)", "low jobs meanwhile"),
        notes=["Two processes (four with 2 s jobs). `priority` never serves low work while there "
               "is critical work, so its waits are what the machine allows. "
               "*low jobs meanwhile*: started in the same time; lanes and `priority` give idle "
               "processes to low work alike."],
    )  # fmt: skip
    cases = [
        (0.005, int(span_s * 420) + 500, 2, WEIGHTS),
        (0.05, int(span_s * 42) + 100, 2, WEIGHTS),
        (2.0, 100, 4, RESERVED),
    ]
    waits: dict[str, list[float]] = {}
    for busy_s, low, processes, lanes in cases:
        setups = [
            Setup("Redis, priority", "redis", None, "priority", processes=processes),
            Setup("Redis, round_robin", "redis", None, processes=processes),
            weighted("**Redis, lanes**", "redis", lanes=lanes, processes=processes),
            Setup("RabbitMQ, stock", "rabbitmq", processes=processes),
            weighted("**RabbitMQ, lanes**", "rabbitmq", lanes=lanes, processes=processes),
        ]
        found: dict[str, list[list[Start]]] = {setup.name: [] for setup in setups}
        for number in range(rounds):
            for setup in setups:
                _say(f"{setup.name}, {busy_s:g} s, round {number + 1}")
                found[setup.name].append(
                    critical_under_flood(setup, low, busy_s, per_s=20, seconds=span_s)
                )
        for setup in setups:
            name = setup.name
            if lanes is RESERVED and setup.idem is not None:
                name = name.replace("lanes", "lanes, reserve 1")
            row, pooled = _wait_row(name, busy_s, found[setup.name])
            section.rows.append(row)
            waits[f"{name.strip('*')} · {_length(busy_s)}"] = pooled
    return section, waits


def _wait_row(
    name: str, busy_s: float, runs: list[list[Start]]
) -> tuple[tuple[str, ...], list[float]]:
    pooled = sorted(s.wait_s * 1000 for run in runs for s in run if s.lane == "critical")
    low = middle([float(sum(start.lane == "low" for start in run)) for run in runs])
    p99 = pooled[min(len(pooled) - 1, int(len(pooled) * 0.99))]
    return (name, _length(busy_s), f"{middle(pooled):.0f}", f"{p99:.0f}", f"{low:.0f}"), pooled


def _length(busy_s: float) -> str:
    return f"{busy_s * 1000:g} ms" if busy_s < 1 else f"{busy_s:g} s"


def reserve(span_s: float) -> Section:
    """Critical jobs, one a second, while a hundred jobs of 30 s wait for four processes."""
    section = Section(
        "A hundred low jobs of 30 s on four processes: wait of critical jobs until the start",
        ("", "critical jobs", "p50 (ms)", "longest (ms)", "low jobs meanwhile"),
        notes=["One critical job a second. One process is reserved for critical. Its cost: low "
               "jobs run on three processes, and the fourth is idle between critical jobs."],
    )  # fmt: skip
    for broker, title in (("redis", "Redis"), ("rabbitmq", "RabbitMQ"), ("quorum", "quorum")):
        setup = weighted(f"**{title}, lanes, reserve 1**", broker, lanes=RESERVED, processes=4)
        _say(setup.name)
        starts = critical_under_flood(setup, 100, 30.0, per_s=1, seconds=span_s)
        waits = sorted(start.wait_s * 1000 for start in starts if start.lane == "critical")
        low = sum(start.lane == "low" for start in starts)
        section.rows.append(
            (setup.name, str(len(waits)), f"{middle(waits):.0f}", f"{waits[-1]:.0f}", str(low))
        )
    return section


def throughput(rounds: int, backlog: int) -> Section:
    """Jobs a second of lanes over stock, in runs that took turns."""
    section = Section(
        "Throughput of no-op jobs against stock",
        ("", "stock (jobs/s)", "lanes (jobs/s)", "ratio", "stock (ms)", "lanes (ms)"),
        notes=[f"Three backlogs of {backlog:,}, two processes; medians of {rounds} rounds, and "
               "the range of the rounds' ratios. Stock is `round_robin` on Redis. *ms*: processor "
               "time of the worker's main process per job, which other work on the machine "
               "disturbs less."],
    )  # fmt: skip
    for broker, title in (("redis", "Redis"), ("rabbitmq", "RabbitMQ")):
        stock, ours = Setup("stock", broker), weighted("lanes", broker)
        speeds: dict[str, list[float]] = {"stock": [], "lanes": []}
        cpu_ms: dict[str, list[float]] = {"stock": [], "lanes": []}
        for number in range(rounds):
            pair = (stock, ours) if number % 2 else (ours, stock)
            for setup in pair:
                _say(f"{title}, {setup.name}, round {number + 1}")
                served = serve_backlog(setup, dict.fromkeys(LANES, backlog), {})
                speeds[setup.name].append(_speed(served.starts))
                cpu_ms[setup.name].append(served.parent_cpu_ms)
        ratios = [b / a for a, b in zip(speeds["stock"], speeds["lanes"], strict=True)]
        section.rows.append(
            (title, f"{middle(speeds['stock']):.0f}", f"{middle(speeds['lanes']):.0f}",
             with_range(ratios), f"{middle(cpu_ms['stock']):.2f}", f"{middle(cpu_ms['lanes']):.2f}")
        )  # fmt: skip
    return section


def _speed(starts: list[Start]) -> float:
    """Of the middle eight tenths: without the start and the last stragglers."""
    times = sorted(start.at_s for start in starts)
    low, high = len(times) // 10, len(times) * 9 // 10
    return (high - low) / (times[high] - times[low])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds; writes nothing")
    parser.add_argument("--only", choices=["shares", "seconds", "flood", "reserve", "throughput"])
    options = parser.parse_args(argv)
    quick, begun, about = options.quick, time.monotonic(), machine.describe()
    rounds, span_s = (1, 4.0) if quick else (2, 10.0)
    sections: list[Section] = []
    parts: dict[str, Callable[[], None]] = {}

    def do_shares() -> None:
        section, runs = shares(1300 if quick else 2000, (1, 3))
        sections.append(section)
        if not quick:
            draw_shares(runs, DOCS / "pictures" / "lanes-shares.png")

    def do_flood() -> None:
        section, waits = flood(rounds, span_s)
        sections.append(section)
        if not quick:
            draw_flood(waits, DOCS / "pictures" / "lanes-flood.png")

    parts["shares"] = do_shares
    parts["seconds"] = lambda: sections.append(seconds())
    parts["flood"] = do_flood
    parts["reserve"] = lambda: sections.append(reserve(10 if quick else 40))
    parts["throughput"] = lambda: sections.append(
        throughput(3 if quick else 7, 500 if quick else 1000)
    )
    for name, part in parts.items():
        if options.only in (None, name):
            part()
            print(f"{sections[-1].as_text()}\n", flush=True)
            if not quick and options.only is None:
                (DOCS / "benchmarks-lanes.md").write_text(_page(about, sections), encoding="utf-8")
    print(about)
    print(f"\n{time.monotonic() - begun:.0f} s in all")
    return 0


def _page(about: str, sections: list[Section]) -> str:
    pictures = (
        "![Shares over time, stock beside lanes](pictures/lanes-shares.png)\n\n"
        "![Waits of critical jobs under a flood](pictures/lanes-flood.png)\n"
    )
    body = "\n".join(f"{section.as_markdown()}\n" for section in sections)
    return f"{INTRODUCTION}**Machine.** {about}\n\n{pictures}\n{body}"


def _say(text: str) -> None:
    """What is measured now, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
