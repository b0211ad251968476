"""Results as bytes, and records that can't be changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_idem.core.record import Record, ResultKind, StoredResult

words = st.text(st.characters(codec="ascii", exclude_characters="|\n", categories=["L", "N", "P"]))


@given(st.sampled_from(ResultKind), words, words, st.binary())
def test_a_result_survives_packing(kind, content_type, encoding, payload):
    result = StoredResult(kind, content_type, encoding, payload)

    assert StoredResult.unpack(result.pack()) == result


@pytest.mark.parametrize("payload", [b"null", b"0", b"false", b'""', b"[]", b"", b"\n", b"a|b\nc"])
def test_falsy_and_odd_results_are_not_lost_by_packing(payload):
    result = StoredResult(ResultKind.INLINE, "application/json", "utf-8", payload)

    assert StoredResult.unpack(result.pack()).payload == payload


@pytest.mark.parametrize("packed", [b"", b"inline||", b"inline\n", b"nonsense||\n", b"\xff||\n"])
def test_bytes_that_are_no_result_are_refused(packed):
    with pytest.raises(ValueError):
        StoredResult.unpack(packed)


def test_it_is_said_what_a_result_lacks():
    with pytest.raises(ValueError, match=r"^not a stored result: no header line$"):
        StoredResult.unpack(b"inline||")


def test_a_record_can_not_be_changed():
    with pytest.raises(FrozenInstanceError):
        Record("k").fence = 1
