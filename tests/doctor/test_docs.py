"""The page of the checks is what the checks say of themselves.

Write it anew: ``python -m tests.doctor.test_docs``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from celery_idem.cli.check import explained
from celery_idem.doctor import told
from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.runner import Report

DOCS = Path(__file__).resolve().parents[2] / "docs"
HEAD = """\
# What the doctor looks for

Made from the checks' own texts, which `celery -A proj idem check --explain ID` prints as well. How
to call it: [The doctor](doctor.md). Numbers like S-I3 are requirements, those like C with a
number [cases](cases.md).

| check | | severity |
|---|---|---|
"""


def page() -> str:
    """``docs/checks.md`` as it should be."""
    rows = [f"| [{it.id}](#{it.id.lower()}) | {it.about} | {it.severity.word} |" for it in CHECKS]
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(map(explained, CHECKS)) + "\n"


def test_the_page_of_the_checks_is_theirs():
    assert (DOCS / "checks.md").read_text() == page()


def test_the_guide_describes_every_field_of_the_json_document():
    text = (DOCS / "doctor.md").read_text()
    fields = json.loads(told.as_json(Report(), "error")).keys()

    assert [name for name in fields if f"`{name}`" not in text] == []


def test_the_guide_names_every_option():
    from celery_idem.cli.check import check

    text = (DOCS / "doctor.md").read_text()
    options = [name for it in check.params for name in it.opts]

    assert [name for name in options if not re.search(rf"{name}\b", text)] == []


if __name__ == "__main__":
    (DOCS / "checks.md").write_text(page())
