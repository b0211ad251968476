"""Claims that code makes by hand: ``SET NX``, ``cache.add``, and ``with idempotent(…)``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from celery_idem.doctor.source.clients import words_of
from celery_idem.doctor.source.delays import number
from celery_idem.doctor.source.module import Function
from celery_idem.doctor.source.names import Names

_REDIS = ("redis", "valkey", "django_redis", "aioredis", "fakeredis")
_CACHES = ("django.core.cache.cache", "django.core.cache.caches[]")
_OURS = ("celery_idem.idempotent()", "celery_idem.guard.idempotent()")
#: words of a key that is meant to be kept: at most once in a while
_KEPT_ON_PURPOSE = {
    "cooldown", "cool", "throttle", "throttled", "rate", "ratelimit", "debounce", "debounced",
    "recent", "recently", "limit", "interval", "snooze", "mute", "muted", "every", "once", "window",
}  # fmt: skip
#: A claim of at most so many seconds is a debounce.
SHORT_S = 300.0


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim in a function's own body. ``call``: what takes it."""

    call: ast.Call
    what: str
    by_hand: bool
    statement: ast.stmt


def claims_of(function: Function, names: Names) -> list[Claim]:
    """The claims that a function makes and looks at, from its first line to its last."""
    found = [*_by_hand(function, names), *_ours(function, names)]
    return sorted(found, key=lambda claim: claim.call.lineno)


def gives_back(function: Function, claim: Claim) -> bool:
    """Whether the function deletes a key where something failed: in ``except`` or ``finally``."""
    for node in ast.walk(function):
        if isinstance(node, ast.Try):
            for statement in [*node.finalbody, *(it for h in node.handlers for it in h.body)]:
                if any(_deletes(it) for it in ast.walk(statement)):
                    return True
    return False


def is_kept_on_purpose(claim: Claim, names: Names) -> bool:
    """A cool-down or a debounce, by its words or because it is short."""
    if words_of(claim.call, names) & _KEPT_ON_PURPOSE:
        return True
    lengths = [it.value for it in claim.call.keywords if it.arg in ("ex", "timeout")]
    lengths += claim.call.args[2:3]
    seconds = [number(it) for it in lengths]
    return any(it is not None and it <= SHORT_S for it in seconds)


def _by_hand(function: Function, names: Names) -> Iterator[Claim]:
    for statement in ast.walk(function):
        if not isinstance(statement, ast.If):
            continue
        for call, what in _claims_behind(statement.test, names):
            yield Claim(call, what, True, statement)


def _claims_behind(test: ast.expr, names: Names) -> Iterator[tuple[ast.Call, str]]:
    """Claims in a condition, and those whose answer a name in it is."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call):
            yield from _claims_among([node], names)
        elif isinstance(node, ast.Name):
            yield from _claims_of_name(node.id, names)


def _claims_of_name(name: str, names: Names) -> list[tuple[ast.Call, str]]:
    return names.once(("claims", name), lambda: _claims_among(names.assigned(name), names))


def _claims_among(values: Iterable[ast.expr], names: Names) -> list[tuple[ast.Call, str]]:
    calls = [(it, _claims(it, names)) for it in values if isinstance(it, ast.Call)]
    return [(call, what) for call, what in calls if what]


def _claims(call: ast.Call, names: Names) -> str:
    path = names.resolve(call.func)
    base, _, last = path.rpartition(".")
    if base in _CACHES and last == "add":
        return "cache.add"
    if base.split(".")[0].rstrip("()[]") not in _REDIS:
        return ""
    if last == "setnx":
        return "setnx"
    if last == "set" and any(it.arg == "nx" for it in call.keywords):
        return "set(nx=True)"
    return ""


def _ours(function: Function, names: Names) -> Iterator[Claim]:
    for statement in ast.walk(function):
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and names.resolve(call) in _OURS:
                    yield Claim(call, "idempotent", False, statement)


def _deletes(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("delete", "unlink", "delete_many", "release", "expire")
    )
