"""Outside a worker: apply(), eager mode, a direct call, signals, and what on_commit gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import Ignore, Retry

from celery_idem import IdempotentTask, InProgress, KeyReused, signals
from celery_idem.binding import binding_of
from celery_idem.core.record import ClaimRequest, Ending, State
from celery_idem.stores.memory import MemoryStore


class World:
    """An app in this process, its records in memory, its effects in a list."""

    def __init__(self, **conf: Any) -> None:
        self.app = Celery(
            "calls", broker="memory://", backend="cache+memory://", set_as_current=False
        )
        self.app.conf.update(**conf)
        self.passed_us = 0
        self.store = MemoryStore(lambda: time.time_ns() // 1000 + self.passed_us)
        binding_of(self.app).use(self.store)
        self.effects: list[Any] = []

    def task(self, function: Callable[..., Any], **options: Any) -> Any:
        name = f"calls.{function.__name__}"
        # shared=False: Celery would give the task to every app that this process makes later, too
        options = {"base": IdempotentTask, "name": name, "shared": False, **options}
        return self.app.task(**options)(function)


# Celery makes a checker of a task's arguments from the function's name: a lambda has none.


def same(n: Any) -> Any:
    return n


def plus(x: int, y: int) -> int:
    return x + y


def total(parts: list[int]) -> int:
    return sum(parts)


def send(n: int, to: str) -> str:
    return to


def one(n: int) -> str:
    return "one"


def two(n: int) -> str:
    return "two"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """All signals of this package, in order."""
    found: list[tuple[str, dict[str, Any]]] = []
    names = ["claimed", "completed", "released", "duplicate", "conflict", "lease_lost", "crashed"]
    receivers = []
    for name in names:

        def receive(sender: Any = None, _name: str = name, **given: Any) -> None:
            given.pop("signal", None)
            found.append((_name, given))

        getattr(signals, name).connect(receive, weak=False, dispatch_uid=f"heard-{name}")
        receivers.append((name, receive))
    yield found
    for name, _ in receivers:
        getattr(signals, name).disconnect(dispatch_uid=f"heard-{name}")


def test_a_direct_call_is_a_plain_function_call(world: World) -> None:
    fences = []

    def pay(self: Any, order: int) -> int:
        fences.append((self.fence, self.lease_lost))
        return order

    task = world.task(pay, bind=True, idem_key="{order}")

    assert (task(1), task(1), task(order=1)) == (1, 1, 1)
    assert fences == [(0, False)] * 3
    assert world.store.get("calls.pay:1") is None


@pytest.mark.parametrize("eager", [False, True])
def test_apply_and_eager_mode_run_under_the_claim(eager: bool) -> None:
    world = World(task_always_eager=eager)

    def pay(self: Any, order: int) -> int:
        world.effects.append(self.fence)
        return order * 2

    task = world.task(pay, bind=True, idem_key="{order}")
    call = task.delay if eager else lambda order: task.apply((order,))

    assert (call(4).get(), call(4).get()) == (8, 8)
    assert len(world.effects) == 1
    assert world.effects[0] > 0
    record = world.store.get("calls.pay:4")
    assert record is not None
    assert record.state is State.DONE


def test_an_eager_chain_and_chord_go_on_over_duplicates() -> None:
    world = World(task_always_eager=True, task_eager_propagates=True)
    add = world.task(plus, name="calls.add", idem_key="{x}+{y}")
    summed = world.task(total, name="calls.total", fingerprint=False)

    for _ in range(2):
        assert chain(add.s(1, 2), add.s(3)).apply().get() == 6
        assert group(add.s(1, 1), add.s(2, 2)).apply().get() == [2, 4]
        assert chord([add.s(1, 1), add.s(2, 2)], summed.s()).apply().get() == 6


def test_an_eager_call_does_not_wait_for_a_holder(world: World) -> None:
    task = world.task(same, name="calls.held", idem_key="{n}")
    world.store.claim(ClaimRequest("calls.held:1", "somebody", 60_000, 60_000))

    with pytest.raises(InProgress) as refused:
        task.apply((1,), throw=True)
    assert 0 < refused.value.retry_after_s <= 60


def test_an_eager_retry_runs_under_the_same_key(world: World) -> None:
    def unsure(self: Any, n: int) -> int:
        world.effects.append(self.request.retries)
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return n

    task = world.task(unsure, bind=True, idem_key="{n}", max_retries=5)

    assert task.apply((1,)).get() == 1
    assert world.effects == [0, 1, 2]
    assert task.apply((1,)).get() == 1
    assert world.effects == [0, 1, 2]


def test_a_failure_an_ignore_and_a_retry_give_the_key_back_as_what_they_are(
    world: World, heard: Any
) -> None:
    def ends(self: Any, how: str) -> None:
        if how == "retry":
            raise Retry("later", when=1)
        raise {"failure": RuntimeError("no"), "ignore": Ignore("no")}[how]

    task = world.task(ends, bind=True, idem_key="{how}")

    for how in ("failure", "ignore"):
        task.apply((how,))

    assert [(name, given["ending"]) for name, given in heard if name == "released"] == [
        ("released", Ending.FAILURE.value),
        ("released", Ending.RELEASE.value),
    ]


def test_signals_say_what_happened_to_a_key(world: World, heard: Any) -> None:
    task = world.task(same, name="calls.told", idem_key="{n}")

    first = task.apply((1,), task_id="first")
    task.apply((1,), task_id="second")
    world.store.claim(ClaimRequest("calls.told:2", "somebody", 60_000, 60_000, task_id="other"))
    task.apply((2,), task_id="third")

    names = [name for name, _ in heard]
    assert names == ["claimed", "completed", "duplicate", "conflict"]
    claimed, completed, duplicate, conflict = (given for _, given in heard)
    assert claimed["key"] == "calls.told:1"
    assert claimed["task_id"] == first.id
    assert completed["fence"] == claimed["fence"] > 0
    assert (duplicate["task_id"], duplicate["done_by"]) == ("second", "first")
    assert (conflict["held_by"], conflict["action"]) == ("other", "wait")


def test_a_signal_receiver_that_raises_changes_nothing(world: World) -> None:
    def angry(**_: Any) -> None:
        raise RuntimeError("not my day")

    task = world.task(same, name="calls.calm", idem_key="{n}")
    signals.claimed.connect(angry, weak=False, dispatch_uid="angry")
    try:
        assert task.apply((1,)).get() == 1
    finally:
        signals.claimed.disconnect(dispatch_uid="angry")


def test_a_crash_that_is_taken_over_is_told(world: World, heard: Any) -> None:
    task = world.task(same, name="calls.heir", idem_key="{n}")
    world.store.claim(ClaimRequest("calls.heir:1", "dead", 500, 60_000))
    world.passed_us += 1_000_000

    task.apply((1,))

    assert [given["crashes"] for name, given in heard if name == "crashed"] == [1]


def test_two_tasks_never_share_a_result(world: World) -> None:
    """A fault of a peer: its key was the function's bare name."""
    first = world.task(one, name="calls.one", idem_key="{n}")
    second = world.task(two, name="calls.two", idem_key="{n}")

    assert (first.apply((1,)).get(), second.apply((1,)).get()) == ("one", "two")


def test_other_arguments_under_one_key_are_refused_in_eager_mode_too(world: World) -> None:
    task = world.task(send, name="calls.to", idem_key="{n}")
    task.apply((1, "a"))

    with pytest.raises(KeyReused):
        task.apply((1, "b"), throw=True)


@pytest.mark.parametrize(
    ("fingerprint", "others_pass"), [(False, True), (("n",), True), (("n", "to"), False)]
)
def test_what_counts_as_other_arguments_can_be_said(
    world: World, fingerprint: Any, others_pass: bool
) -> None:
    task = world.task(send, name="calls.fp", idem_key="{n}", fingerprint=fingerprint)
    task.apply((1, "a"))

    again = task.apply((1, "b"))

    assert (again.state == "SUCCESS") is others_pass
    if others_pass:
        assert again.get() == "a"
