"""Keys that would differ on a retry: made from a clock, a random number, or this process (S-I2)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from celery_idem.doctor.source.module import Function, Module
from celery_idem.doctor.source.names import Names, calls_in
from celery_idem.doctor.source.reader import Reader

#: How deep functions that make a key are followed.
MOST_DEPTH = 4

_MODULES = ("random.", "secrets.", "time.", "numpy.random.", "faker.")
_PATHS = {
    "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "os.urandom", "os.getpid",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
    "datetime.date.today", "django.utils.timezone.now", "django.utils.timezone.localtime",
    "django.utils.timezone.localdate", "django.utils.crypto.get_random_string",
    "pendulum.now", "pendulum.today", "arrow.now", "arrow.utcnow", "ulid.new", "nanoid.generate",
    "shortuuid.uuid", "socket.gethostname", "hash", "id", "object", "threading.get_ident",
}  # fmt: skip
_STABLE = {"time.strptime", "time.strftime"}
#: what of a request changes with every delivery
_OF_THE_DELIVERY = {"retries", "hostname", "delivery_info"}


@dataclass(frozen=True, eq=False)
class UnstableKey:
    """Where a key is made, and of what."""

    module: Module
    node: ast.AST
    what: str  #: ``uuid.uuid4``
    where: str  #: ``idem_key``, ``idempotent``, ``step``


def unstable_keys(reader: Reader, module: Module) -> Iterator[UnstableKey]:
    """The keys in a file that are not stable."""
    for names, call in calls_in(reader, module):
        for where, value in _keys_of(call, names):
            what = unstable_part(value, names)
            if what:
                yield UnstableKey(module, value, what, where)
    for owner in module.classes.values():
        names = Names(reader, module, None, owner)
        for statement in owner.body:
            if isinstance(statement, ast.Assign) and _is_named(statement, "idem_key"):
                what = unstable_part(statement.value, names)
                if what:
                    yield UnstableKey(module, statement.value, what, "idem_key")
            elif isinstance(statement, Function) and statement.name == "idem_key":
                what = _in_function(Names(reader, module, statement, owner), statement, 0)
                if what:
                    yield UnstableKey(module, statement, what, "idem_key")


def unstable_part(node: ast.AST, names: Names, depth: int = 0) -> str:
    """What in an expression differs from run to run; ``""`` when nothing can be seen to."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            found = _of_call(part, names, depth)
        elif isinstance(part, ast.Name):
            found = _of_name(part, names, depth)
        elif isinstance(part, ast.Attribute):
            found = _of_attribute(part)
        else:
            continue
        if found:
            return found
    return ""


def _of_call(call: ast.Call, names: Names, depth: int) -> str:
    path = names.resolve(call.func)
    if path in _PATHS or (path.startswith(_MODULES) and path not in _STABLE):
        return path.replace("()", "")
    callee = names.callee(call) if depth < MOST_DEPTH else None
    if callee is None:
        return ""
    return _in_function(names.of(callee), callee.function, depth + 1)


def _of_name(name: ast.Name, names: Names, depth: int) -> str:
    if depth >= MOST_DEPTH or not isinstance(name.ctx, ast.Load):
        return ""
    for value in names.assigned(name.id):
        found = unstable_part(value, names, depth + 1)
        if found:
            return found
    # idem_key=key_of: a function that is given, not called
    place = names.resolve(name)
    callee = names.callee(ast.Call(func=name, args=[], keywords=[])) if place else None
    if callee is None:
        return ""
    return _in_function(names.of(callee), callee.function, depth + 1)


def _of_attribute(node: ast.Attribute) -> str:
    owner = node.value
    if node.attr in _OF_THE_DELIVERY and isinstance(owner, ast.Attribute):
        if owner.attr == "request" and isinstance(owner.value, ast.Name):
            return f"{owner.value.id}.request.{node.attr}"
    return ""


def _in_function(names: Names, function: Function, depth: int) -> str:
    """What makes the returned values differ."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            found = unstable_part(node.value, names, depth)
            if found:
                return found
    return ""


def _keys_of(call: ast.Call, names: Names) -> Iterator[tuple[str, ast.expr]]:
    for keyword in call.keywords:
        if keyword.arg == "idem_key":
            yield "idem_key", keyword.value
    path = names.resolve(call.func)
    if path in ("celery_idem.idempotent", "celery_idem.guard.idempotent"):
        yield from (("idempotent", it) for it in call.args[:1])
        yield from (("idempotent", it.value) for it in call.keywords if it.arg == "key")
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "step":
        yield from (("step", it.value) for it in call.keywords if it.arg == "key")


def _is_named(statement: ast.Assign, name: str) -> bool:
    return any(isinstance(it, ast.Name) and it.id == name for it in statement.targets)
