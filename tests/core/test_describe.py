"""What is kept of a key in words, and never what a result says."""

from __future__ import annotations

import pytest

from celery_idem.core.describe import described_result, described_step, task_of, when
from celery_idem.core.record import Record, ResultKind, StoredResult
from celery_idem.core.step import StepRecord, StepState

SECRET = b'"4111 1111"'


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (None, None),
        (b"", None),
        (
            StoredResult(ResultKind.INLINE, "application/json", "utf-8", SECRET).pack(),
            "11 bytes of application/json",
        ),
        (StoredResult(ResultKind.REFERENCE, payload=SECRET).pack(), "reference"),
        (StoredResult(ResultKind.LOST).pack(), "lost"),
        (SECRET, "11 bytes"),
    ],
)
def test_a_result_is_described_by_its_kind_type_and_size(packed, words):
    assert described_result(packed) == words


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (StepRecord(StepState.DONE, "shop.send", SECRET).pack(), "done (shop.send)"),
        (StepRecord(StepState.STARTED, "shop.send").pack(), "started (shop.send)"),
        (
            StepRecord(StepState.FAILED, "shop.send", SECRET, "shop.Refused").pack(),
            "failed with shop.Refused (shop.send)",
        ),
        (SECRET, "11 bytes"),
        (b"7", "1 bytes"),
    ],
)
def test_a_step_is_described_by_its_state_and_function(packed, words):
    assert described_step(packed) == words


def test_a_time_is_told_in_utc_and_none_is_not():
    assert when(1_767_323_045_999) == "2026-01-02 03:04:05Z"
    assert when(0) is None


@pytest.mark.parametrize(
    ("record", "task"),
    [
        (Record("shop.pay:order:7", runs=1, task_id="t1"), "shop.pay"),
        (Record("shop.pay:order:7", revoked=True), "shop.pay"),
        (Record("%step:api:7", runs=1, task_id="t1"), "(shared steps)"),
        (Record("shop.pay%cooldown:order:7", runs=1), "(cool-downs)"),
        (Record("order 7", runs=1), "(plain code)"),
        (Record("order 7", runs=1, task_id="t1"), "(plain code)"),
        (Record("order:7", runs=1), "(plain code)"),
        (Record("shop%3Apay%253A:7", runs=1, task_id="t1"), "shop:pay%3A"),
    ],
)
def test_a_record_is_of_its_task_and_what_is_no_tasks_is_in_brackets(record, task):
    assert task_of(record) == task
