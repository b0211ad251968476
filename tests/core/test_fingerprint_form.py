"""What a fingerprint is made of: it is kept in records, and compared by later versions."""

from __future__ import annotations

from typing import Any

import pytest

from celery_idem.core.key import fingerprint


class Model:
    """As pydantic's: what it is in JSON differs from what it is in Python."""

    def model_dump(self, mode: str = "python") -> dict[str, Any]:
        return {"at": "2026-01-02" if mode == "json" else object()}


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b"\x01\xff", {"bytes": "01ff"}),
        (bytearray(b"\x01"), {"bytes": "01"}),
        ({b"\x03", b"\x01", b"\x02"}, [{"bytes": "01"}, {"bytes": "02"}, {"bytes": "03"}]),
        (Model(), {"at": "2026-01-02"}),
        (object(), {"type": "builtins.object"}),
    ],
)
def test_a_value_counts_as_its_form_in_json(value: object, form: object):
    assert fingerprint(value) == fingerprint(form)
