"""Arguments by name, as a call binds them: the quick way and the whole one agree."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_idem.core.errors import ConfigError
from celery_idem.core.key import bind, binder, check_names, parse_template


def plain(order: int, note: str = "none", *, lane: str = "low") -> None: ...
def all_defaults(a: int = 1, b: int = 2) -> None: ...
def nothing() -> None: ...
def anything(order: int, *rest: Any, **more: Any) -> None: ...
def by_place(order: int, /, note: str = "") -> None: ...


FUNCTIONS = (plain, all_defaults, nothing, anything, by_place)


@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from(["order", "note", "lane", "a", "b", "else"]), st.integers()),
)
def test_the_quick_way_binds_as_a_call_does(function, args, kwargs):
    signature = inspect.signature(function)
    try:
        exact = bind(signature, args, kwargs)
    except TypeError as error:
        with pytest.raises(TypeError, match=f"^{error}$".replace("*", r"\*")):
            binder(signature)(args, kwargs)
        return

    assert binder(signature)(args, kwargs) == exact


@pytest.mark.parametrize("function", [plain, all_defaults, nothing])
def test_what_is_wrong_with_a_call_is_said_as_python_says_it(function):
    with pytest.raises(TypeError, match=r"too many positional|unexpected keyword|missing"):
        binder(inspect.signature(function))((1, 2, 3, 4), {})
    with pytest.raises(TypeError, match=r"unexpected keyword|missing a required"):
        binder(inspect.signature(function))((), {"else": 1})


def test_an_argument_that_is_given_twice_is_an_error():
    with pytest.raises(TypeError, match="multiple values for argument 'order'"):
        binder(inspect.signature(plain))((1,), {"order": 1})


def test_defaults_are_filled_in_and_what_is_given_comes_first():
    bound = binder(inspect.signature(plain))((7,), {"lane": "high"})

    assert bound == {"order": 7, "note": "none", "lane": "high"}


def test_a_template_may_read_only_what_the_task_takes():
    template = parse_template("order:{order}:{who}")

    with pytest.raises(
        ConfigError,
        match=r"^idem_key 'order:\{order\}:\{who\}' of shop.pay reads 'who', which the task "
        r"doesn't take; it takes order, note, lane$",
    ):
        check_names(template, inspect.signature(plain), "shop.pay")
    check_names(template, inspect.signature(anything), "shop.pay")


def test_of_a_task_that_takes_nothing_that_is_said():
    with pytest.raises(ConfigError, match=r"it takes nothing$"):
        check_names(parse_template("{order}"), inspect.signature(nothing), "shop.pay")


@pytest.mark.parametrize(
    ("template", "key"), [("nightly-report", "nightly-report"), ("{{a}}", "{a}")]
)
def test_a_template_for_all_calls_is_the_key_itself(template, key):
    """What cools down may be one thing for all calls."""
    assert parse_template(template, one_for_all=True).fill({"a": 1}) == key
