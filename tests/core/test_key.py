"""The key: one name for one piece of work, the same on every try, another for every other work."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import inspect
import json
import random
import secrets
import time
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from decimal import Decimal
from enum import Enum, IntEnum
from random import randint
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_idem.core.errors import ConfigError, KeyInvalid
from celery_idem.core.key import (
    MAX_KEY_CHARS,
    bind,
    check_key,
    check_names,
    fingerprint,
    parse_template,
    unstable_names,
)


class Colour(Enum):
    RED = "red"
    NONE = None


class Level(IntEnum):
    HIGH = 3


@dataclasses.dataclass
class User:
    email: str
    tags: list[str] = dataclasses.field(default_factory=list)

    @property
    def dangerous(self) -> str:
        raise AssertionError("a template has run code")


class Slotted:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


Point = namedtuple("Point", "x y")


def fill(text: str, **arguments: Any) -> str:
    return parse_template(text).fill(arguments)


# --- templates


@pytest.mark.parametrize(
    ("template", "arguments", "key"),
    [
        ("order:{order_id}", {"order_id": 17}, "order:17"),
        ("{a}", {"a": "x"}, "x"),
        ("{a}:{b}", {"a": 1, "b": 2}, "1:2"),
        ("p:{a}/{b}:s", {"a": "x", "b": "y"}, "p:x/y:s"),
        ("{a.email}", {"a": User("u@example.org")}, "u@example.org"),
        ("{a[email]}", {"a": {"email": "u@example.org"}}, "u@example.org"),
        ("{a.email}", {"a": {"email": "u@example.org"}}, "u@example.org"),
        ("{a[b][c].d}", {"a": {"b": {"c": {"d": 5}}}}, "5"),
        ("{a[0]}", {"a": [7, 8]}, "7"),
        ("{a[-1]}", {"a": (7, 8)}, "8"),
        ("{a[1]}", {"a": {1: "one"}}, "one"),
        ("{a.x}", {"a": Point(3, 4)}, "3"),
        ("{a.name}", {"a": Slotted("n")}, "n"),
        ("{a.id}", {"a": SimpleNamespace(id=9)}, "9"),
        ("{a}", {"a": Colour.RED}, "red"),
        ("{a}", {"a": Level.HIGH}, "3"),
        ("{a}", {"a": False}, "False"),
        ("{a}", {"a": 0}, "0"),
        ("{a}", {"a": 0.5}, "0.5"),
        ("{a}", {"a": Decimal("1.50")}, "1.50"),
        ("{a}", {"a": uuid.UUID(int=5)}, "00000000-0000-0000-0000-000000000005"),
        ("{a}", {"a": dt.date(2026, 3, 1)}, "2026-03-01"),
        ("{a}", {"a": dt.datetime(2026, 3, 1, 4, 5)}, "2026-03-01T04:05:00"),
        ("{a}", {"a": [1, "x"]}, '[1,"x"]'),
        ("{a}", {"a": {"b": 1, "a": 2}}, '{"a":2,"b":1}'),
        ("{a}", {"a": {3, 1, 2}}, "[1,2,3]"),
        ("{{x}}{a}", {"a": 1}, "{x}1"),
        ("größe:{a}", {"a": "XL"}, "größe:XL"),
    ],
)
def test_a_template_is_filled_in(template, arguments, key):
    assert fill(template, **arguments) == key


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("", "non-empty template"),
        ("   ", "non-empty template"),
        (None, "non-empty template"),
        (17, "non-empty template"),
        ("order", "has no {argument}"),
        ("order:{{order_id}}", "has no {argument}"),
        ("order:{", "is not a template"),
        ("order:}", "is not a template"),
        ("{}", "must begin with the name of an argument"),
        ("{0}", "must begin with the name of an argument"),
        ("{a:>5}", "may not have a format"),
        ("{a!r}", "may not have a format or a conversion"),
        ("{a}{b}", "put text between {a} and {b}"),
        ("{a.b}{c}", "put text between {a.b} and {c}"),
        ("{a.__class__}", "no leading underscore"),
        ("{a._secret}", "no leading underscore"),
        ("{a.b()}", "can't read"),
        ("{a[}", "is not a template"),
        ("{a b}", "can't read"),
        ("{a}%{b}", "holds a '%'"),
    ],
)
def test_a_template_that_can_not_make_good_keys_is_refused_at_once(template, why):
    with pytest.raises(ConfigError) as refused:
        parse_template(template)

    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("template", "arguments", "why"),
    [
        ("{a}", {}, "the call has no argument 'a'; it has none"),
        ("{a}", {"b": 1, "c": 2}, "it has b, c"),
        ("{a}", {"a": None}, "is None"),
        ("{a}", {"a": ""}, "is ''"),
        ("{a}", {"a": Colour.NONE}, "no stable text"),
        ("{a}", {"a": object()}, "is a object, which has no stable text"),
        ("{a}", {"a": b"bytes"}, "is a bytes, which has no stable text"),
        ("{a.b}", {"a": {"c": 1}}, "{a.b} finds no 'b' in a dict"),
        ("{a[5]}", {"a": [1]}, "finds no '5' in a list"),
        ("{a.b}", {"a": [1]}, "finds no 'b' in a list"),
        ("{a.b}", {"a": "text"}, "finds no 'b' in a str"),
        ("{a[0]}", {"a": "text"}, "finds no '0' in a str"),
        ("{a.b}", {"a": 7}, "finds no 'b' in a int"),
        ("{a.dangerous}", {"a": User("x")}, "finds no 'dangerous' in a User"),
        ("{a[__class__]}", {"a": User("x")}, "finds no '__class__' in a User"),
        ("{a[²]}", {"a": [1, 2, 3]}, "finds no '²' in a list"),
        ("{a.b}", {"a": None}, "finds no 'b' in a NoneType"),
    ],
)
def test_arguments_that_give_no_key_are_the_tasks_error(template, arguments, why):
    with pytest.raises(KeyInvalid) as refused:
        fill(template, **arguments)

    assert why in str(refused.value)


values = st.one_of(st.text(min_size=1), st.text("%:-A3F258", min_size=1), st.integers())
templates = st.sampled_from(
    ["{a}:{b}", "x{a}:{b}y", "{a}3{b}", "{a}--{b}", "{a}A:A{b}", "{a}é{b}", "p:{a}F{b}:s"]
)


@given(templates, values, values, values, values)
def test_two_calls_with_other_values_have_other_keys(template, a, b, c, d):
    assume((str(a), str(b)) != (str(c), str(d)))

    assert fill(template, a=a, b=b) != fill(template, a=c, b=d)


@given(st.text(min_size=1), st.text(min_size=1))
def test_of_one_argument_every_value_has_its_own_key(a, b):
    assume(a != b)

    assert fill("order:{a}", a=a) != fill("order:{a}", a=b)


def test_a_separator_in_a_value_does_not_move_the_border():
    assert fill("{a}:{b}", a="x:y", b="z") == "x%3Ay:z"
    assert fill("{a}:{b}", a="x", b="y:z") == "x:y%3Az"


def test_the_names_that_a_template_reads_are_known():
    assert parse_template("{a.b}:{c[0]}:{a}").names == ("a", "c", "a")


# --- names and binding


def task(order_id: int, note: str = "", *rest: Any, lane: str = "low", **more: Any) -> None: ...


def strict(order_id: int, note: str = "") -> None: ...


def test_a_name_that_the_task_does_not_take_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"reads 'order', which the task.*order_id, note"):
        check_names(parse_template("{order}"), inspect.signature(strict), "shop.pay")


def test_a_task_with_keywords_may_take_any_name():
    check_names(parse_template("{order}"), inspect.signature(task), "shop.pay")


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((7,), {}), ((), {"order_id": 7}), ((7, ""), {}), ((), {"note": "", "order_id": 7})],
)
def test_however_a_call_is_written_its_arguments_are_the_same(args, kwargs):
    assert bind(inspect.signature(strict), args, kwargs) == {"order_id": 7, "note": ""}


def test_other_keywords_are_arguments_like_the_named():
    bound = bind(inspect.signature(task), (7, "n", 8, 9), {"tenant": "t", "lane": "high"})

    assert bound == {"order_id": 7, "note": "n", "rest": (8, 9), "lane": "high", "tenant": "t"}


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"order_id": 1})])
def test_a_call_that_python_refuses_is_refused_alike(args, kwargs):
    with pytest.raises(TypeError):
        bind(inspect.signature(strict), args, kwargs)


# --- the whole key


@pytest.mark.parametrize("key", ["a", "order:17", "größe 17", "{x}", "x" * MAX_KEY_CHARS])
def test_a_good_key_is_taken_as_it_is(key):
    assert check_key(key, "shop.pay") == key


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "must be a text, not NoneType"),
        (17, "must be a text, not int"),
        (b"k", "must be a text, not bytes"),
        ("", "is empty"),
        ("  ", "is empty"),
        ("x" * (MAX_KEY_CHARS + 1), "has 256 characters, allowed are 255"),
        ("a\nb", "can't be printed"),
        ("a\x00b", "can't be printed"),
        ("a\ud800b", "can't be printed"),
    ],
)
def test_a_bad_key_is_refused_with_the_place_and_the_reason(key, why):
    with pytest.raises(KeyInvalid) as refused:
        check_key(key, "shop.pay")

    assert str(refused.value).startswith("shop.pay: ")
    assert why in str(refused.value)


# --- fingerprints


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(plain)
def test_both_sides_of_the_wire_have_one_fingerprint(value):
    assert fingerprint(json.loads(json.dumps(value))) == fingerprint(value)


@given(plain, plain)
def test_other_arguments_have_another_fingerprint(one, other):
    assume(json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True))

    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1, "b": 2}, OrderedDict([("b", 2), ("a", 1)])),
        ((1, 2), [1, 2]),
        ({1: "x"}, {"1": "x"}),
        (frozenset({"a", "b"}), {"b", "a"}),
        (Colour.RED, "red"),
        (Decimal("1.0"), "1.0"),
        (uuid.UUID(int=7), str(uuid.UUID(int=7))),
        (dt.date(2026, 3, 1), "2026-03-01"),
        (dt.timedelta(seconds=5), 5.0),
        (User("u", ["t"]), {"email": "u", "tags": ["t"]}),
        ("\ud800", "\ud800"),
    ],
)
def test_values_that_mean_the_same_have_one_fingerprint(one, same):
    assert fingerprint(one) == fingerprint(same)


@pytest.mark.parametrize("falsy", [0, 0.0, False, None, "", [], {}])
def test_falsy_values_are_told_apart_as_json_does(falsy):
    others = [v for v in (0, 0.0, False, None, "", [], {}) if json.dumps(v) != json.dumps(falsy)]

    assert fingerprint(falsy) not in {fingerprint(v) for v in others}


def test_an_object_without_a_canonical_form_counts_by_its_type_alone():
    assert fingerprint([object()]) == fingerprint([object()])
    assert fingerprint([object()]) != fingerprint([Slotted("x")])


def test_a_fingerprint_is_the_same_in_every_process():
    """Never ``hash()``, which differs from process to process."""
    canonical = '{"note":"ü","order_id":7}'

    expected = hashlib.sha256(canonical.encode()).hexdigest()[:32]
    assert fingerprint({"order_id": 7, "note": "ü"}) == expected


# --- unstable keys (S-I2)


def by_time_module(order_id: int) -> str:
    return f"{order_id}:{time.time()}"


def by_uuid_module(order_id: int) -> str:
    return f"{order_id}:{uuid.uuid4()}"


def by_uuid_function(order_id: int) -> str:
    return f"{order_id}:{uuid4()}"


def by_random_module(order_id: int) -> str:
    return f"{order_id}:{random.random()}"


def by_random_function(order_id: int) -> str:
    return f"{order_id}:{randint(1, 9)}"


def by_secrets(order_id: int) -> str:
    return f"{order_id}:{secrets.token_hex()}"


def by_now(order_id: int) -> str:
    return f"{order_id}:{dt.datetime.now()}"


def by_today_inside(order_id: int) -> str:
    return "".join(str(dt.date.today()) for _ in range(order_id))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (by_time_module, "time"),
        (by_uuid_module, "uuid.uuid4"),
        (by_uuid_function, "uuid.uuid4"),
        (by_random_module, "random"),
        (by_random_function, "random.randint"),
        (by_secrets, "secrets"),
        (by_now, "datetime.now"),
        (by_today_inside, "datetime.today"),
    ],
)
def test_a_key_function_that_uses_a_clock_or_chance_is_found(function, named):
    assert unstable_names(function) == [named]


def by_arguments(order_id: int, when: dt.datetime) -> str:
    return f"{order_id}:{when.isoformat()}:{uuid.uuid5(uuid.NAMESPACE_URL, str(order_id))}"


def by_a_date_of_the_payload(order_id: int) -> str:
    return dt.datetime.fromisoformat(f"2026-01-0{order_id}").isoformat()


class ByCall:
    def __call__(self, order_id: int) -> str:
        return str(order_id)


@pytest.mark.parametrize("function", [by_arguments, by_a_date_of_the_payload, ByCall(), str])
def test_a_stable_key_function_is_not_blamed(function: Callable[..., str]):
    assert unstable_names(function) == []
