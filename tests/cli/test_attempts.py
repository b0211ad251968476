"""How a record's attempt is told to a person."""

from __future__ import annotations

import pytest

from celery_idem.cli.records import as_dict, described
from celery_idem.core.record import Record
from celery_idem.delivery import attempt_of


@pytest.mark.parametrize(
    ("headers", "retries", "text"),
    [
        ({}, 0, "0"),
        ({}, 2, "2"),
        ({"idem_replays": 1}, 0, "0 of replay 1"),
        ({"idem_replays": 12}, 3, "3 of replay 12"),
        ({"replaced_task_nesting": 2}, 1, "1, after replacement 2"),
        ({"replaced_task_nesting": 1, "idem_replays": 1}, 0, "0 of replay 1, after replacement 1"),
    ],
)
def test_show_takes_an_attempt_apart_and_json_keeps_the_number(
    headers: dict[str, int], retries: int, text: str
) -> None:
    record = Record(key="shop.pay:1", attempt=attempt_of(headers, retries))

    (shown,) = [line for line in described(record).splitlines() if line.startswith("attempt")]

    assert shown.split(maxsplit=1)[1] == text
    assert as_dict(record)["attempt"] == record.attempt
