"""Tasks a second on one worker, each variant in turn in every round, as ratios of one round."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.bench import Bench, Run
from benchmarks.report import Section, middle, say, with_range

YARDSTICK = "stock.noop"


@dataclass(frozen=True, slots=True)
class Variant:
    """A task to measure, and the task that it is compared with."""

    task: str
    text: str
    against: str = YARDSTICK


OURS = (
    Variant(YARDSTICK, "plain `acks_late` task, app without celery_idem"),
    Variant("guarded.plain", "plain `acks_late` task, beside idempotent ones"),
    Variant("guarded.noop", "**idempotent, key = task id**"),
    Variant("guarded.keyed", "**idempotent, key from the arguments**"),
    Variant("stock.answer", "plain, result kept", "stock.answer"),
    Variant("guarded.answer", "**idempotent, result kept**", "stock.answer"),
)


def measure(pool: str, rounds: int, messages: int, peers: bool) -> Section:
    """The table of one pool."""
    apps = ("stock", "guarded", "peers") if peers else ("stock", "guarded")
    with Bench(pool=pool, apps=apps) as bench:
        variants = list(OURS)
        missing: dict[str, str] = {}
        if peers:
            module = bench.modules["peers"]
            variants += [Variant(f"peers.{name}", name) for name in module.TASKS]
            missing = module.MISSING
        bench.warm_up([variant.task for variant in variants])
        runs: dict[str, list[Run]] = {variant.task: [] for variant in variants}
        for number in range(rounds):
            say(f"{pool}: round {number + 1} of {rounds}")
            for variant in random.sample(variants, len(variants)):
                runs[variant.task].append(bench.run(variant.task, messages))
    section = Section(
        f"Throughput, {pool} pool, 2 at a time",
        (
            "task",
            "tasks/s",
            "of plain",
            "with sending",
            "CPU of plain",
            "main",
            "children",
            "server",
            "send",
        ),
        [_row(variant, runs) for variant in variants],
        [
            f"Medians of {rounds} rounds of {messages} no-op tasks a variant, variants in random "
            "order within a round; ratios are taken within a round, (lowest–highest). "
            "“with sending”: the ratio when the time to send the messages is added, where two of "
            "the peers do half of their work. “CPU of plain”: plain's processor time a task by "
            "this task's, of worker and server together: what remains when every core is busy. "
            "Main process, children, server: ms of processor a task; send: ms a task.",
        ],
    )
    section.notes += [f"{name}: {why}" for name, why in missing.items()]
    return section


def _row(variant: Variant, runs: dict[str, list[Run]]) -> tuple[str, ...]:
    mine, other = runs[variant.task], runs[variant.against]
    pairs = list(zip(mine, other, strict=True))
    ratios = [a.per_second / b.per_second for a, b in pairs]
    both = [(b.wall_s + b.publish_s) / (a.wall_s + a.publish_s) for a, b in pairs]
    return (
        variant.text,
        f"{middle([run.per_second for run in mine]):.0f}",
        "1" if variant.task == variant.against else with_range(ratios),
        "1" if variant.task == variant.against else f"{middle(both):.2f}",
        "1" if variant.task == variant.against else f"{_cpu_ms(other) / _cpu_ms(mine):.2f}",
        f"{middle([run.parent_cpu_s / run.messages for run in mine]) * 1000:.2f}",
        f"{middle([run.children_cpu_s / run.messages for run in mine]) * 1000:.2f}",
        f"{middle([run.server_cpu_s / run.messages for run in mine]) * 1000:.2f}",
        f"{middle([run.publish_s / run.messages for run in mine]) * 1000:.2f}",
    )


def _cpu_ms(runs: list[Run]) -> float:
    return middle([run.cpu_s / run.messages for run in runs]) * 1000
