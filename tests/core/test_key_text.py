"""Which characters a key may have: those of anybody's plain text."""

from __future__ import annotations

import inspect

import pytest

from celery_idem.core.errors import KeyInvalid
from celery_idem.core.key import bind, check_key, parse_template


def greet(name: str) -> None: ...


@pytest.mark.parametrize(
    "name",
    [
        "Jörg",
        "山田\u3000太郎",
        "می\u200cخواهم",
        "नमस्\u200dते",
        "\U0001f469\u200d\U0001f680",
        "a\u00a0b",
    ],
    ids=["German", "Japanese", "Persian", "Hindi", "emoji", "no-break space"],
)
def test_a_name_in_any_language_makes_a_key(name: str) -> None:
    """Spaces and joiners that Python counts as unprintable are parts of words and names."""
    key = parse_template("user:{name}").fill(bind(inspect.signature(greet), (name,), {}))

    assert check_key(key, "shop.greet") == f"user:{name}"


@pytest.mark.parametrize("char", ["\n", "\x00", "\x1b", "\u2028", "\u202e", "\ud800", "\ufeff"])
def test_what_is_no_text_is_refused(char: str) -> None:
    with pytest.raises(KeyInvalid, match="can't be printed"):
        check_key(f"a{char}b", "shop.greet")
