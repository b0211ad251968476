"""What a task costs on the wire, by the statistics of a store server that nobody else uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from benchmarks.bench import Bench
from benchmarks.report import Section, say


def measure(messages: int) -> Section:
    """Commands and round trips a task on the store, for us and for the peers."""
    say("round trips")
    section = Section(
        "Round trips to the store, a task",
        ("task", "round trips", "commands sent", "which"),
        notes=[
            f"`INFO` of a server that is only the store, over {messages} tasks: round trips are "
            "`total_reads_processed`, commands are `commandstats` (what a script calls inside "
            "the server is not sent by anybody). Sending the task is included.",
        ],
    )
    with Bench(apart=True, apps=("guarded", "peers")) as bench:
        names = ["guarded.plain", "guarded.noop", "guarded.keyed", "guarded.answer"]
        names += [f"peers.{name}" for name in bench.modules["peers"].TASKS]
        bench.warm_up(names)
        with bench.store.client() as store:
            for name in names:
                section.rows.append(_row(name, store, lambda: bench.run(name, messages), messages))  # noqa: B023
            first = bench.send("guarded.keyed", messages)
            bench.drain("guarded.keyed")
            bench.send("guarded.keyed", messages, first)
            section.rows.append(
                _row("a duplicate", store, lambda: bench.drain("guarded.keyed"), messages)
            )
    return section


def _row(name: str, store: redis.Redis, act: Callable[[], Any], tasks: int) -> tuple[str, ...]:
    before, reads_before = _commands(store), _reads(store)
    act()
    reads, after = _reads(store) - reads_before, _commands(store)
    sent = {
        command: round((calls - before.get(command, 0)) / tasks, 2)
        for command, calls in after.items()
    }
    if sent.get("evalsha"):
        sent = {"evalsha": sent["evalsha"]}
    sent = {command: calls for command, calls in sent.items() if calls >= 0.05}
    which = ", ".join(f"{command.upper()} {calls:g}" for command, calls in sorted(sent.items()))
    # one of the reads is this function's own question
    return (
        name.removeprefix("peers."), f"{(reads - 1) / tasks:.2f}", f"{sum(sent.values()):.2f}",
        which or "none",
    )  # fmt: skip


def _commands(store: redis.Redis) -> dict[str, int]:
    stats = store.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


def _reads(store: redis.Redis) -> int:
    return int(store.info("stats")["total_reads_processed"])
