"""From an order of lanes to the picks of one fetch.

An order (``queue_order_strategy``) answers "which queues, in what order" for one message, and is
told which one gave it. So a fetch for an order that we don't know takes one message. kombu's own
orders are known: ``round_robin`` shares evenly, with ``priority`` and ``sorted`` the first queue
that has messages gives them all; for these a fetch takes as many as are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kombu.utils.scheduling import priority_cycle, round_robin_cycle, sorted_cycle


def plan(
    order: Any, queues: Sequence[str], count: int, separator: str
) -> tuple[list[str], list[int]]:
    """Queues in order of preference, and the numbers (from 1) of those to pick, one per message.

    What a picked queue does not have, the fetch takes from the others: in the picks' own shares, or
    from the next in order of preference.
    """
    # an order made for kombu's lists names each queue with its priorities: we know them ourselves
    named = (name.partition(separator)[0] for name in order.consume(len(queues)))
    preferred = list(dict.fromkeys(named))
    if not preferred:
        return [], []
    if type(order) is round_robin_cycle:
        return preferred, [1 + index % len(preferred) for index in range(count)]
    if type(order) in (priority_cycle, sorted_cycle):
        return preferred, [1] * count
    return preferred, [1]


def in_order(picks: Sequence[int], taken: dict[int, list[Any]]) -> list[tuple[int, Any]]:
    """What came of each lane, in the order in which it was to be picked; the rest after it."""
    rows = {lane: iter(items) for lane, items in taken.items()}
    result: list[tuple[int, Any]] = []
    for lane in picks:
        if lane in rows:
            for item in rows[lane]:
                result.append((lane, item))
                break
    for lane, rest in rows.items():
        result += [(lane, item) for item in rest]
    return result
