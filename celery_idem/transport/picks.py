"""From an order of lanes to the picks of one fetch.

kombu's orders (``queue_order_strategy``) answer "which queues, in what order" for one message.
A fetch of several messages wants to know the next n lanes, were all of them full; the fetch script
gives what an empty lane does not use to the others in the same shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Order(Protocol):
    """kombu's protocol for ``queue_order_strategy``, and what ours may offer besides."""

    def update(self, it: Sequence[str]) -> None:
        """These queues are consumed from now on."""

    def consume(self, n: int) -> Sequence[str]:
        """Up to n queues, the one to look at first in front."""

    def rotate(self, last_used: str) -> Any:
        """A message of this queue was taken."""


def plan(
    order: Any, queues: Sequence[str], count: int, separator: str
) -> tuple[list[str], list[int]]:
    """Queues in order of preference, and the numbers (from 1) of those to pick, one per message.

    An order with a method ``plan(n)`` names its next n queues itself. Of kombu's own, only
    ``round_robin`` shares; with the others the first queue that has messages gives them all.
    """
    # an order made for kombu's lists names each queue with its priorities: we know them ourselves
    named = (name.partition(separator)[0] for name in order.consume(len(queues)))
    preferred = list(dict.fromkeys(named))
    if not preferred:
        return [], []
    number = {queue: index for index, queue in enumerate(preferred, 1)}
    ahead = getattr(order, "plan", None)
    if count > 1 and callable(ahead):
        return preferred, [number[queue] for queue in ahead(count) if queue in number]
    if count > 1 and shares_evenly(order):
        return preferred, [1 + index % len(preferred) for index in range(count)]
    return preferred, [1] * count


def shares_evenly(order: Any) -> bool:
    """Whether this is kombu's round robin, which moves the queue that was used to the end."""
    from kombu.utils.scheduling import priority_cycle, round_robin_cycle

    return isinstance(order, round_robin_cycle) and not isinstance(order, priority_cycle)


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
