"""Whether a condition looks at what is known of the work already.

The answer of a call that went out just now tells of that call. Of an effect's answer nothing is a
look at the state, and of an HTTP answer its content alone may be: not ``ok``, not ``status_code``,
as long as it doesn't ask whether something is there (``success``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from celery_idem.doctor.source.clients import effect_of, is_http, only_reads, words_in
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
_CONTENT = "content"
#: the status that tells of the work: what was asked for is not there yet
_NOT_THERE = 404
#: How many names and functions are looked through for the call that gave an answer.
MOST_DEPTH = 4


@dataclass(frozen=True)
class _Answer:
    """Of a call that goes out."""

    of_effect: bool
    reads: bool  #: of a GET or HEAD, which change nothing
    part: str  #: what is read of it first: ``status_code``, or ``_CONTENT``; ``""``: nothing


def decides_by_state(test: ast.expr, names: Names) -> bool:
    """Whether a condition looks at what is known of the work already."""
    if _words(test, names) & _STATE:
        return True
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and _asks_whether_it_is_there(node, names):
            return True
        if _decides(node) or (isinstance(node, ast.Name) and _decides_by_value(node.id, names)):
            return True
    return False


def _decides_by_value(name: str, names: Names) -> bool:
    return names.once(("decides", name), lambda: any(map(_decides, names.assigned(name))))


def _decides(node: ast.AST) -> bool:
    """Whether it is a call whose answer tells whether this caller was the first."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in _DECIDES or any(it.arg == "nx" for it in node.keywords)


def _asks_whether_it_is_there(test: ast.Compare, names: Names) -> bool:
    """``requests.head(url).status_code == 404``."""
    if not any(isinstance(it, ast.Constant) and it.value == _NOT_THERE for it in ast.walk(test)):
        return False
    answers = _answers(test.left, names)
    return bool(answers) and not any(it.of_effect for it in answers)


def reads_of(node: ast.expr, names: Names) -> Set[str]:
    """What is read of the answer of a GET or HEAD (``status_code``); nothing where it may be
    another answer."""
    answers = _answers(node, names)
    return {it.part for it in answers} if all(it.reads for it in answers) else set()


def _words(node: ast.AST, names: Names, depth: int = 0) -> set[str]:
    """Words that may tell of the work: of names, texts, and the values of assigned names."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(answer.of_effect for side in sides for answer in _answers(side, names)):
            return set()
    if any(it.of_effect or it.part in _OF_THE_EXCHANGE for it in _answers(node, names)):
        return set()
    found: set[str] = set()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found.update(words_in(node.value))
    elif isinstance(node, ast.Attribute):
        found.update(words_in(node.attr))
    elif isinstance(node, ast.Name):
        found.update(words_in(node.id))
        return found if depth else found | _words_of_values(node.id, names)
    return found.union(*(_words(it, names, depth) for it in ast.iter_child_nodes(node)))


def _words_of_values(name: str, names: Names) -> set[str]:
    return names.once(
        ("words of the work", name),
        lambda: set[str]().union(*(_words(it, names, 1) for it in names.assigned(name))),
    )


def _answers(node: ast.AST, names: Names, depth: int = 0) -> Set[_Answer]:
    """The answers that the value of an expression may be, or be read from."""
    if depth > MOST_DEPTH:
        return frozenset()
    if isinstance(node, ast.Attribute):
        part = node.attr if node.attr in _OF_THE_EXCHANGE else _CONTENT
        of_value = _answers(node.value, names, depth)
        return {replace(it, part=it.part or part) for it in of_value}
    if isinstance(node, (ast.Subscript, ast.Await, ast.NamedExpr)):
        return _answers(node.value, names, depth)
    if isinstance(node, ast.Name):
        return names.once(
            ("answers", node.id, depth),
            lambda: _answers_among(names.assigned(node.id), names, depth + 1),
        )
    return _answers_of_call(node, names, depth) if isinstance(node, ast.Call) else frozenset()


def _answers_among(values: Iterable[ast.expr], names: Names, depth: int) -> Set[_Answer]:
    return frozenset[_Answer]().union(*(_answers(it, names, depth) for it in values))


def _answers_of_call(call: ast.Call, names: Names, depth: int) -> Set[_Answer]:
    effect = bool(effect_of(call, names))
    if effect or is_http(call, names):
        return {_Answer(effect, not effect and only_reads(call, names), "")}
    callee = names.callee(call)
    if callee is None:
        return _answers(call.func, names, depth) if isinstance(call.func, ast.Attribute) else set()
    inside = names.of(callee)

    def returned() -> Set[_Answer]:
        nodes = (it for it in ast.walk(callee.function) if isinstance(it, ast.Return))
        values = [it.value for it in nodes if it.value is not None]
        return _answers_among(values, inside, depth + 1)

    return inside.once(("returned answers", depth), returned)
