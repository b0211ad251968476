"""Whether a condition looks at what is known of the work already.

The answer of a call that went out just now tells of that call. Of an effect's answer nothing is a
look at the state, and of an HTTP answer its content alone may be: not ``ok``, not ``status_code``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from celery_idem.doctor.source.clients import effect_of, is_http, words_in
from celery_idem.doctor.source.names import Names

#: words of a condition that tell whether the work is done already
_STATE = {
    "status", "state", "sent", "done", "processed", "paid", "completed", "complete", "finished",
    "notified", "delivered", "charged", "published", "handled", "handed", "exists", "already",
    "acquired", "acquire", "locked", "rowcount", "seen", "inserted", "duplicate", "duplicates",
    "claimed", "taken", "updated", "created", "is_new", "setnx", "confirmed", "shipped", "refunded",
    "captured", "settled", "executed", "imported", "synced", "posted", "queued", "submitted",
    "idempotent", "once", "first", "lock", "at", "flag", "phase", "stage", "pending", "open",
    "fulfilled", "cancelled", "canceled", "archived", "closed", "billed", "invoiced", "emailed",
}  # fmt: skip
#: calls whose answer tells whether this caller was the first
_DECIDES = {"get_or_create", "update", "add", "setnx", "acquire", "exists", "insert_ignore"}
#: what an HTTP answer says of the exchange; ``""``: the answer itself
_OF_THE_EXCHANGE = {
    "", "status_code", "status", "ok", "reason", "reason_phrase", "code", "getcode", "is_success",
    "is_error", "is_client_error", "is_server_error", "elapsed", "headers", "url", "history",
}  # fmt: skip
#: the status that tells of the work: what was asked for is not there yet
_NOT_THERE = 404
#: How many names and functions are looked through for the call that gave an answer.
MOST_DEPTH = 4


@dataclass(frozen=True)
class _Answer:
    """Of a call that goes out."""

    of_effect: bool
    part: str  #: what is read of it first: ``json``, ``status_code``


def decides_by_state(test: ast.expr, names: Names) -> bool:
    """Whether a condition looks at what is known of the work already."""
    if _words(test, names) & _STATE:
        return True
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and _asks_whether_it_is_there(node, names):
            return True
        values = names.assigned(node.id) if isinstance(node, ast.Name) else [node]
        for value in values:
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                if value.func.attr in _DECIDES or _sets_if_absent(value):
                    return True
    return False


def _sets_if_absent(call: ast.Call) -> bool:
    return any(it.arg == "nx" for it in call.keywords)


def _asks_whether_it_is_there(test: ast.Compare, names: Names) -> bool:
    """``requests.head(url).status_code == 404``."""
    if not any(isinstance(it, ast.Constant) and it.value == _NOT_THERE for it in ast.walk(test)):
        return False
    answers = list(_answers(test.left, names))
    return bool(answers) and not any(it.of_effect for it in answers)


def _words(node: ast.AST, names: Names, depth: int = 0) -> set[str]:
    """Words that may tell of the work: of names, texts, and the values of assigned names."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(answer.of_effect for side in sides for answer in _answers(side, names)):
            return set()
    if any(it.of_effect or it.part in _OF_THE_EXCHANGE for it in _answers(node, names)):
        return set()
    parts: list[ast.AST] = list(ast.iter_child_nodes(node))
    found: set[str] = set()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found.update(words_in(node.value))
    elif isinstance(node, ast.Attribute):
        found.update(words_in(node.attr))
    elif isinstance(node, ast.Name):
        found.update(words_in(node.id))
        parts = [] if depth else [*names.assigned(node.id)]
        depth += 1
    return found.union(*(_words(it, names, depth) for it in parts))


def _answers(node: ast.AST, names: Names, depth: int = 0, part: str = "") -> Iterator[_Answer]:
    """The answers that the value of an expression may be, or be read from."""
    if depth > MOST_DEPTH:
        return
    if isinstance(node, ast.Attribute):
        yield from _answers(node.value, names, depth, node.attr)
    elif isinstance(node, (ast.Subscript, ast.Await, ast.NamedExpr)):
        yield from _answers(node.value, names, depth, part)
    elif isinstance(node, ast.Name):
        for value in names.assigned(node.id):
            yield from _answers(value, names, depth + 1, part)
    elif isinstance(node, ast.Call):
        yield from _answers_of_call(node, names, depth, part)


def _answers_of_call(call: ast.Call, names: Names, depth: int, part: str) -> Iterator[_Answer]:
    effect = bool(effect_of(call, names))
    if effect or is_http(call, names):
        yield _Answer(effect, part)
        return
    callee = names.callee(call)
    if callee is None:
        if isinstance(call.func, ast.Attribute):
            yield from _answers(call.func, names, depth)
        return
    inside = names.of(callee)
    for node in ast.walk(callee.function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from _answers(node.value, inside, depth + 1, part)
