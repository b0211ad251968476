"""Whether a condition asks if something is there already: a GET or HEAD, and whether it went well.

``if requests.head(url).status_code == 200: return`` is a look at the state, as the branch for
success ends the body. ``if not answer.ok: return`` is none: what was asked is needed for the rest.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from celery_idem.doctor.source.names import Names
from celery_idem.doctor.source.state import reads_of

_WENT_WELL = {"ok", "is_success"}
_FAILED = {"is_error", "is_client_error", "is_server_error"}
_STATUS = {"status_code", "status", "code", "getcode"}
_CODES = {"http.HTTPStatus", "requests.codes", "httpx.codes"}
#: by the names in ``_CODES``
_SUCCESSES = {
    "ok", "created", "accepted", "no_content", "non_authoritative_information", "reset_content",
    "partial_content",
}  # fmt: skip
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
}  # fmt: skip


def branch_of_success(test: ast.expr, names: Names) -> bool | None:
    """Which branch is taken when a GET or HEAD went well: the first (True), the other one, or None
    where the condition tells nothing of it."""
    if isinstance(test, ast.Name):
        return names.once(("success", test.id), lambda: _of_values(test, names))
    return _of_expression(test, names)


def _of_values(name: ast.Name, names: Names) -> bool | None:
    found = (_of_expression(it, names) for it in names.behind(name) if _tells_alone(it))
    return next((it for it in found if it is not None), None)


def _tells_alone(node: ast.expr) -> bool:
    """Without other names, which may be what this one is assigned from."""
    return isinstance(node, (ast.Compare, ast.Attribute))


def _of_expression(test: ast.expr, names: Names) -> bool | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inside = branch_of_success(test.operand, names)
        return None if inside is None else not inside
    if isinstance(test, ast.BoolOp):
        found = (branch_of_success(it, names) for it in test.values)
        return next((it for it in found if it is not None), None)
    if isinstance(test, ast.NamedExpr):
        return branch_of_success(test.value, names)
    if isinstance(test, ast.Attribute) and test.attr in _WENT_WELL | _FAILED:
        return test.attr in _WENT_WELL if reads_of(test, names) == {test.attr} else None
    return _of_comparison(test, names) if isinstance(test, ast.Compare) else None


def _of_comparison(test: ast.Compare, names: Names) -> bool | None:
    sides = [test.left, *test.comparators]
    for left, operator, right in zip(sides, test.ops, sides[1:], strict=False):
        found = None
        if _is_status(left, names):
            found = _compared(type(operator), right, names)
        elif _is_status(right, names):
            found = _compared(_MIRRORED.get(type(operator), type(operator)), left, names)
        if found is not None:
            return found
    return None


def _is_status(node: ast.expr, names: Names) -> bool:
    parts = reads_of(node, names)
    return bool(parts) and parts <= _STATUS


def _compared(operator: type[ast.cmpop], other: ast.expr, names: Names) -> bool | None:
    """Whether a status that compares so with the other side is one of success."""
    if operator in (ast.In, ast.NotIn):
        elements = other.elts if isinstance(other, (ast.Tuple, ast.List, ast.Set)) else []
        return operator is ast.In if any(_is_success(it, names) for it in elements) else None
    if operator in (ast.Eq, ast.NotEq):
        return operator is ast.Eq if _is_success(other, names) else None
    bound = other.value if isinstance(other, ast.Constant) else None
    tells = _BOUNDS.get(operator)
    if tells is None or not isinstance(bound, int):
        return None
    return operator in (ast.Lt, ast.LtE) if tells(bound) else None


#: bounds between the statuses of success and those of failure
_BOUNDS: dict[type[ast.cmpop], Callable[[int], bool]] = {
    ast.Lt: lambda bound: 200 < bound <= 400,
    ast.LtE: lambda bound: 200 <= bound < 400,
    ast.Gt: lambda bound: 200 <= bound < 400,
    ast.GtE: lambda bound: 200 < bound <= 400,
}


def _is_success(node: ast.expr, names: Names) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) and 200 <= node.value < 300
    base, _, last = names.resolve(node).rpartition(".")
    return base in _CODES and last.lower() in _SUCCESSES
