"""What is said of a key that can't be made, and the rare values that make one all the same."""

from __future__ import annotations

import sys
from collections import namedtuple
from typing import Any

import pytest

from celery_idem.core.errors import ConfigError, KeyInvalid
from celery_idem.core.key import check_key, fingerprint, parse_template, unstable_names

Sizes = namedtuple("Sizes", "X1 Y1")


class Opaque:
    """Nothing of it has a canonical form."""


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{a:>5}",
            "idem_key '{a:>5}': {a} may not have a format or a conversion; the key is made of the "
            "value's plain text (use a callable for anything else)",
        ),
        (
            "{a}{b}",
            "idem_key '{a}{b}': put text between {a} and {b}, or two different calls may get one "
            "key",
        ),
        (
            "order",
            "idem_key 'order' has no {argument}: every call of the task would be one piece of "
            "work; name what tells two calls apart, or how often it may be done (cooldown_s)",
        ),
        (
            "{a}%{b}",
            "idem_key '{a}%{b}' holds a '%' between two arguments, which marks escaped "
            "characters of values; use another separator, such as ':'",
        ),
        ("x{1}", "idem_key 'x{1}': {1} must begin with the name of an argument"),
        (
            "x{a._b}",
            "idem_key 'x{a._b}': can't read {a._b}; allowed are {arg}, {arg.field} and "
            "{arg[index]}, with no leading underscore",
        ),
    ],
)
def test_a_template_that_makes_no_good_keys_is_refused_with_the_remedy(
    template: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_template(template)

    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"b": 1}, "idem_key 'x:{a}': the call has no argument 'a'; it has b"),
        (
            {"a": None},
            "idem_key 'x:{a}': {a} is None: all such calls would be one piece of work; pass a "
            "value, or use a callable that says what an absent one means",
        ),
        (
            {"a": b"raw"},
            "idem_key 'x:{a}': {a} is a bytes, which has no stable text; name one of its fields, "
            "or use a callable",
        ),
    ],
)
def test_arguments_that_make_no_key_are_refused_with_the_template(
    arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(KeyInvalid) as refused:
        parse_template("x:{a}").fill(arguments)

    assert str(refused.value) == says


def test_what_to_do_with_a_long_key_is_said() -> None:
    with pytest.raises(KeyInvalid) as refused:
        check_key("x" * 256, "shop.pay")

    assert str(refused.value) == (
        "shop.pay: the key has 256 characters, allowed are 255; "
        "hash what is long (hashlib.sha256(...).hexdigest())"
    )


@pytest.mark.parametrize(
    ("template", "arguments", "key"),
    [
        ("x:{a}", {"a": "50%"}, "x:50%"),  # nothing to tell apart, so nothing is escaped
        ("{a}:{b}", {"a": "x%3Ay", "b": "z"}, "x%253Ay:z"),
        ("{a}é{b}", {"a": "é", "b": "x"}, "%C3%A9éx"),
        ("{a.X1}", {"a": Sizes(7, 8)}, "7"),
    ],
)
def test_a_value_is_escaped_only_where_two_could_be_mixed_up(
    template: str, arguments: dict[str, Any], key: str
) -> None:
    assert parse_template(template).fill(arguments) == key


def test_what_has_no_form_counts_by_the_whole_name_of_its_type() -> None:
    assert fingerprint(Opaque()) == fingerprint({"type": f"{__name__}.Opaque"})


def test_a_source_of_chance_that_was_never_imported_is_used_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "random")

    assert unstable_names(lambda order: str(Sizes(order, 1))) == []
