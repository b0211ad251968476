"""IDEM043: results that expire before the records that point to them."""

from __future__ import annotations

import pytest

from celery_idem.doctor.source.reader import Reader, TaskSource
from celery_idem.doctor.source.returns import may_return_much

LATE = """
app.conf.result_expires = {expires}

@app.task(base=IdempotentTask, retention_s=100_000)
def big(rows):
    return [row.upper() for row in rows]

@app.task(base=IdempotentTask, retention_s=100_000)
def small(order_id):
    return {{"order": order_id}}

@app.task(base=IdempotentTask, retention_s=99_999)
def soon(rows):
    return list(rows)
"""


@pytest.mark.parametrize(
    ("expires", "names"),
    [(99_999, ["big"]), (100_000, []), (0, []), (3600, ["big", "soon"])],
)
def test_results_that_expire_before_their_record_are_found(project, expires, names):
    examined = project(LATE.format(expires=expires), backend="redis://localhost:1/1")

    assert [name for _, name in examined.found("IDEM043")] == names


def test_without_a_result_backend_there_is_nothing_to_expire(project):
    assert project(LATE.format(expires=60)).found("IDEM043") == []


@pytest.mark.parametrize(
    ("returned", "much"),
    [
        ("None", False),
        ("1", False),
        ("f'{x}-{y}'", False),
        ("x", False),
        ("{'id': x, 'n': len(y)}", False),
        ("(x, y)", False),
        ("len(y)", False),
        ("x.id", False),
        ("answer.json()['id']", False),
        ("x if y else None", False),
        ("x == y", False),
        ("rows", True),
        ("answer.json()", True),
        ("[it for it in y]", True),
        ("{'rows': rows()}", True),
        ("x.body", True),
    ],
)
def test_what_can_be_seen_to_be_small(tmp_path, returned, much):
    path = tmp_path / "body.py"
    path.write_text(f"def f(x, y):\n    rows = x.all()\n    return {returned}\n")
    module = Reader().module(path)
    assert module is not None
    assert may_return_much(TaskSource(module, module.functions["f"])) is much
