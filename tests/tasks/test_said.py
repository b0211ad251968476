"""What a call or a task says of itself counts, or is an error: none of it is silently ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery, Task, chain, xmap, xstarmap

from celery_idem import ConfigError, IdempotentTask, KeyInvalid, LeaseLost, idempotent
from celery_idem.binding import binding_of
from celery_idem.core.errors import BodyNotRun
from celery_idem.core.record import Claimed, ClaimRequest, State
from celery_idem.core.retry_window import retry_window
from celery_idem.core.settings import Settings
from celery_idem.guard import Holding
from celery_idem.options import most_retries, redelivery_s, retry_policies, terms_of, window_of
from celery_idem.run import HOLDING
from celery_idem.stores.memory import MemoryStore
from tests.tasks.test_calls import World


@pytest.fixture
def world() -> World:
    return World()


def state_of(world: World, key: str) -> State | None:
    record = world.store.get(key)
    return record.state if record else None


# --- a call here and now --------------------------------------------------------------------


def plain(n: int) -> int:
    return n


@pytest.mark.parametrize(
    "call",
    [
        lambda task, n: task.apply((n,), idem_key="given"),
        lambda task, n: task.s(n).set(idem_key="given").apply(),
        lambda task, n: chain(task.s(n)).apply(idem_key="given"),
    ],
    ids=["apply", "signature", "chain"],
)
def test_a_key_given_to_apply_names_the_work(world: World, call: Callable[..., Any]) -> None:
    task = world.task(plain, fingerprint=False)

    assert call(task, 1).get() == 1
    assert call(task, 2).get() == 1
    assert state_of(world, "calls.plain:given") is State.DONE


def test_what_is_wrong_in_a_call_here_and_now_is_an_error(world: World) -> None:
    task = world.task(plain)

    with pytest.raises(KeyInvalid):
        task.apply((1,), idem_key="")
    with pytest.raises(ConfigError, match="no lanes are configured"):
        task.apply((1,), lane="low")


def test_what_is_wrong_in_a_call_on_commit_is_an_error_before_anything_is_committed(
    world: World,
) -> None:
    task = world.task(plain)

    with pytest.raises(KeyInvalid):
        task.apply_async_on_commit((1,), idem_key="")
    with pytest.raises(ConfigError, match="no lanes are configured"):
        task.apply_async_on_commit((1,), lane="low")


def test_a_call_that_wants_an_outcome_gets_one_of_a_task_that_keeps_none(world: World) -> None:
    task = world.task(plain, idem_key="{n}", ignore_result=True, on_duplicate="ignore")
    task.apply((1,))

    task.apply((1,), task_id="wanted", ignore_result=False)
    task.apply((1,), task_id="unwanted", ignore_result=True)

    assert task.AsyncResult("wanted").state == "REVOKED"
    assert task.AsyncResult("unwanted").state == "PENDING"


def test_headers_that_a_body_gives_its_retry_do_not_change_the_key(world: World) -> None:
    def unsure(self: Any, n: int) -> int:
        world.effects.append(self.request.headers.get("mine"))
        if self.request.retries == 0:
            raise self.retry(countdown=0, headers={"mine": 1})
        return n

    task = world.task(unsure, bind=True)

    assert task.apply((1,), idem_key="given").get() == 1
    assert world.effects == [None, 1]
    record = world.store.get("calls.unsure:given")
    assert record is not None
    assert (record.state, record.runs) == (State.DONE, 2)


# --- what a call of the body runs ------------------------------------------------------------


async def later(n: int) -> int:
    return n


def one_by_one(n: int) -> Iterator[int]:
    yield n


@pytest.mark.parametrize(("body", "kind"), [(later, "async"), (one_by_one, "a generator")])
def test_a_body_that_a_call_does_not_run_is_an_error_at_the_start(
    world: World, body: Callable[..., Any], kind: str
) -> None:
    with pytest.raises(ConfigError, match=f"the body is {kind}, and Celery only calls it"):
        world.task(body, lazy=False)


@pytest.mark.parametrize("body", [later, one_by_one])
def test_what_has_not_run_is_a_failure_and_not_done(world: World, body: Callable[..., Any]) -> None:
    def hidden(n: int) -> Any:
        return body(n)

    outcome = world.task(hidden, idem_key="{n}").apply((1,))

    assert outcome.state == "FAILURE"
    assert isinstance(outcome.result, BodyNotRun)
    assert state_of(world, "calls.hidden:1") is State.FREE


def test_who_knows_how_to_run_async_bodies_may_have_them(world: World) -> None:
    class Runs(Task):  # type: ignore[type-arg]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.run(self.run(*args, **kwargs))

    class Mine(IdempotentTask, Runs):
        abstract = True

    task = world.task(later, base=Mine, idem_key="{n}")

    assert (task.apply((3,)).get(), task.apply((3,)).get()) == (3, 3)
    assert state_of(world, "calls.later:3") is State.DONE


def test_plain_code_that_a_call_does_not_run_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(TypeError, match="is a generator"):
        idempotent("{n}", ttl=60, store=store)(one_by_one)

    @idempotent("{n}", ttl=60, store=store)
    def hidden(n: int) -> Any:
        return later(n)

    for _ in range(2):
        with pytest.raises(BodyNotRun):
            hidden(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda task: task.map([1, 2]),
        lambda task: task.starmap([(1,), (2,)]),
        lambda task: task.chunks([(1,), (2,)], 1),
    ],
    ids=["map", "starmap", "chunks"],
)
def test_many_bodies_in_one_message_of_celerys_are_refused(
    world: World, make: Callable[..., Any]
) -> None:
    with pytest.raises(ConfigError, match=r"group\(task\.s\(item\) for item in items\)"):
        make(world.task(plain))


@pytest.mark.parametrize("kind", [xmap, xstarmap])
def test_they_are_refused_where_they_run_too(world: World, kind: Any) -> None:
    def effect(n: int) -> None:
        world.effects.append(n)

    task = world.task(effect)
    it = [1, 2] if kind is xmap else [(1,), (2,)]

    outcome = kind(task.s(), it, app=world.app).apply()

    assert isinstance(outcome.result, ConfigError)
    assert world.effects == []


def test_only_the_holder_of_the_key_adds_to_its_chord(world: World) -> None:
    task = world.task(plain)
    asked = ClaimRequest("calls.plain:1", "first", 500, 60_000)
    claimed = world.store.claim(asked)
    assert isinstance(claimed, Claimed)
    world.passed_us += 1_000_000
    world.store.claim(replace(asked, owner="second"))
    task.push_request(id="1", chord={"task": "body"}, group="g")
    setattr(task.request, HOLDING, Holding(world.store, claimed))

    try:
        with pytest.raises(LeaseLost):
            task.add_to_chord(task.s(2))
    finally:
        task.pop_request()


# --- what a task says -------------------------------------------------------------------------


def test_a_parameter_that_the_next_release_adds_makes_no_other_call(world: World) -> None:
    """A rolling deploy: what the old code has done is redelivered to the new."""

    def made_for(release: Callable[..., Any]) -> Any:
        app = Celery("calls", broker="memory://", set_as_current=False)
        binding_of(app).use(world.store)
        options = {"base": IdempotentTask, "name": "calls.pay", "shared": False}
        return app.task(idem_key="{n}", **options)(release)

    def old(n: int, gone: str = "") -> int:
        return n

    def new(n: int, tags: tuple[str, ...] = (), *, mail: bool = True) -> int:
        raise AssertionError("it was done before")

    before, after = made_for(old), made_for(new)
    before.apply((1,), task_id="same")

    assert after.apply((1,), task_id="same").get() == 1
    assert after.apply((1,), {"tags": []}).get() == 1
    assert after.apply((1,), {"tags": ["x"]}).state == "FAILURE"
    assert after.apply((1,), {"mail": False}).state == "FAILURE"


@pytest.mark.parametrize(
    ("options", "total_s"),
    [
        ({"retry_backoff": True}, 3 * 180),  # what a body asks for by self.retry() knows none
        ({"retry_backoff": 500, "retry_backoff_max": 9000}, 500 + 1000 + 2000),  # or uses it itself
        ({"retry_backoff": True, "autoretry_for": (OSError,)}, 1 + 2 + 4),
        ({"retry_backoff": 0.5, "autoretry_for": (OSError,)}, 1 + 2 + 4),
        ({"retry_backoff": 2.5, "autoretry_for": (OSError,)}, 2 + 4 + 8),
    ],
)
def test_a_backoff_counts_in_the_window_as_celery_makes_it(
    world: World, options: dict[str, Any], total_s: int
) -> None:
    assert window_of(world.task(plain, max_retries=3, **options), 0).total_s == total_s


@pytest.mark.parametrize(
    ("broker", "seconds"),
    [
        ("redis://h/0", 86400),
        ("sqs://", 86400),
        ("foreign://h/db", 86400),  # a transport that is not known here: what the app says counts
        ("amqp://h//", 3600),
        ("redis-streams://h/0", 3600),
        ("memory://", 3600),
    ],
)
def test_a_redelivery_takes_what_the_app_says_where_its_broker_may_go_by_it(
    broker: str, seconds: float
) -> None:
    app = Celery(broker=broker, set_as_current=False)
    app.conf.broker_transport_options = {"visibility_timeout": 86400}

    assert redelivery_s(app) == seconds


def test_where_only_the_body_knows_its_pauses_records_outlive_the_longest(
    world: World,
) -> None:
    own = {"max_retries": 14, "retry_backoff": 60, "retry_backoff_max": 86400}
    needed_s = 2 * retry_window(retry_policies(world.task(plain, **own), 3600)[1]).total_s
    computed = world.task(plain, name="calls.computed", **own)
    explicit = world.task(plain, name="calls.explicit", retention_s=2 * 86400, **own)

    assert needed_s > 8 * 86400
    assert terms_of(computed, Settings(), 3600).retention_ms >= needed_s * 1000
    assert terms_of(explicit, Settings(), 3600).retention_ms == 2 * 86400 * 1000


@pytest.mark.parametrize(
    ("options", "retries", "total_s"),
    [
        # 3 × 180 s of its own are the shorter ones
        ({"retry_kwargs": {"max_retries": 50, "countdown": 60}}, 50, 50 * 60),
        ({"retry_kwargs": {"max_retries": 50}, "default_retry_delay": 10}, 50, 50 * 10),
        ({"retry_kwargs": {"max_retries": 1}}, 3, 3 * 180),
    ],
)
def test_automatic_retries_count_in_the_window_as_they_are_asked_for(
    world: World, options: dict[str, Any], retries: int, total_s: int
) -> None:
    task = world.task(plain, autoretry_for=(OSError,), **options)

    window = window_of(task, 0)

    assert (window.policy.max_retries, window.total_s) == (retries, total_s)
    assert most_retries(task) == options["retry_kwargs"]["max_retries"]
