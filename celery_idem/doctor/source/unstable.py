"""Keys that would differ on a retry: made from a clock, a random number, or this process (S-I2)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace

from celery_idem.doctor.source.module import Function, Module
from celery_idem.doctor.source.names import Names, calls_in, names_in
from celery_idem.doctor.source.reader import Reader, TaskSource

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
_STABLE = {"time.strptime", "time.strftime", "time.mktime"}
#: of these, those that change a value that they are given
_OF_A_VALUE = {"django.utils.timezone.localtime", "django.utils.timezone.localdate"}
_DATES = {"datetime.date.today", "django.utils.timezone.localdate", "pendulum.today"}
#: of which a date can be read
_CLOCKS = {
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
    "django.utils.timezone.now", "django.utils.timezone.localtime",
    "pendulum.now", "arrow.now", "arrow.utcnow",
}  # fmt: skip
_OF_A_DATE = {
    "date", "year", "month", "day", "hour", "isocalendar", "toordinal", "weekday", "isoweekday",
}  # fmt: skip
_SECONDS = re.compile(r"%[SsfTcXr]")
#: what makes one value of another: all of it is in the result
_CONVERTS = {"str", "int", "float", "repr", "format", "bytes", "hex", "round", "abs"}
_CONVERTERS = ("hashlib.", "hmac.", "uuid.", "base64.", "binascii.", "datetime.", "json.", "zlib.")
_OF_TEXT = {"join", "format", "format_map", "replace"}
#: calls that send one message, with a key of its own
_SENDS = {"apply_async", "apply_async_on_commit", "send_task", "apply", "set", "signature"}
#: what of a request changes with every delivery
_OF_THE_DELIVERY = {"retries", "hostname", "delivery_info"}


@dataclass(frozen=True, eq=False)
class UnstableKey:
    """Where a key is made, and of what."""

    module: Module
    node: ast.AST
    what: str  #: ``uuid.uuid4``
    where: str  #: ``idem_key``, ``idempotent``, ``step``


@dataclass(frozen=True)
class Unstable:
    """What differs from run to run."""

    what: str
    is_date: bool = False  #: it is the same for a day, or an hour
    given_as: str | None = None  #: what alone of the value it is in: ``Event(id=uuid4())``


def bodies(reader: Reader, sources: Iterable[TaskSource]) -> set[Function]:
    """The bodies of tasks, and the project's functions that they call: what a retry runs again."""
    found: set[Function] = set()
    for source in sources:
        names = names_in(reader, source.module, source.function, source.owner)
        _run_by(names, source.function, found)
    return found


def _run_by(names: Names, function: Function, found: set[Function]) -> None:
    if function in found:
        return
    found.update(it for it in ast.walk(function) if isinstance(it, Function))
    for node in ast.walk(function):
        callee = names.callee(node) if isinstance(node, ast.Call) else None
        if callee is not None:
            _run_by(names.of(callee), callee.function, found)


def unstable_keys(
    reader: Reader, module: Module, retried: Set[Function] = frozenset()
) -> Iterator[UnstableKey]:
    """The keys in a file that are not stable. ``retried``: functions that tasks run. Elsewhere a
    message's own key is made once, and may hold a date."""
    for names, call in calls_in(reader, module):
        once = names.function not in retried and _sends(call)
        for where, value in _keys_of(call, names):
            what = unstable_part(value, names, dates_too=not (once and where == "idem_key"))
            if what:
                yield UnstableKey(module, value, what, where)
    for owner in module.classes.values():
        names = names_in(reader, module, None, owner)
        for statement in owner.body:
            if isinstance(statement, ast.Assign) and _is_named(statement, "idem_key"):
                what = unstable_part(statement.value, names)
                if what:
                    yield UnstableKey(module, statement.value, what, "idem_key")
            elif isinstance(statement, Function) and statement.name == "idem_key":
                inside = names_in(reader, module, statement, owner)
                for found in _in_function(inside, statement, 0):
                    yield UnstableKey(module, statement, found.what, "idem_key")
                    break


def unstable_part(node: ast.AST, names: Names, *, dates_too: bool = True) -> str:
    """What in an expression differs from run to run; ``""`` when nothing can be seen to."""
    found = (it.what for it in _unstable(node, names) if dates_too or not it.is_date)
    return next(found, "")


def _unstable(
    node: ast.AST, names: Names, depth: int = 0, *, in_part: bool = False
) -> Iterator[Unstable]:
    """``in_part``: something is read of the value (``pk``), not all of it is used."""
    if isinstance(node, ast.Call):
        yield from _of_call(node, names, depth, in_part)
    elif isinstance(node, ast.Name):
        yield from _of_name(node, names, depth, in_part)
    elif isinstance(node, ast.Attribute):
        yield from _of_attribute(node)
        inside = _read_of(node.attr, _unstable(node.value, names, depth, in_part=True))
        yield from map(_as_date, inside) if node.attr in _OF_A_DATE else inside
    elif isinstance(node, ast.Subscript):
        yield from _of_element(node, names, depth, in_part)
        yield from _unstable(node.slice, names, depth)
    elif isinstance(node, (ast.Await, ast.NamedExpr)):
        yield from _unstable(node.value, names, depth, in_part=in_part)
    elif isinstance(node, ast.FormattedValue) and _is_format_of_a_date(node.format_spec):
        yield from map(_as_date, _unstable(node.value, names, depth))
    else:
        for child in ast.iter_child_nodes(node):
            yield from _unstable(child, names, depth)


def _of_element(node: ast.Subscript, names: Names, depth: int, in_part: bool) -> Iterator[Unstable]:
    """``row["id"]`` is a part of the row; ``text[:8]`` is text."""
    if isinstance(node.slice, ast.Slice):
        return _unstable(node.value, names, depth, in_part=in_part)
    part = str(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
    return _read_of(part, _unstable(node.value, names, depth, in_part=True))


def _read_of(part: str, found: Iterable[Unstable]) -> Iterator[Unstable]:
    """What of this is in one part of the value."""
    return (replace(it, given_as=None) for it in found if it.given_as in (None, part))


def _as_date(found: Unstable) -> Unstable:
    return replace(found, is_date=found.is_date or found.what in _CLOCKS)


def _is_format_of_a_date(format_spec: ast.AST | None) -> bool:
    text = format_spec
    if isinstance(text, ast.JoinedStr):
        text = text.values[0] if len(text.values) == 1 else None
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return False
    return "%" in text.value and not _SECONDS.search(text.value)


def _of_call(call: ast.Call, names: Names, depth: int, in_part: bool) -> Iterator[Unstable]:
    path = names.resolve(call.func)
    if _differs(path, call):
        yield Unstable(path.replace("()", ""), path in _DATES)
        return
    callee = names.callee(call) if depth < MOST_DEPTH else None
    if callee is not None:
        yield from _in_function(names.of(callee), callee.function, depth + 1, in_part)
    else:
        of_func = _unstable(call.func, names, depth)
        yield from map(_as_date, of_func) if _gives_a_date(call) else of_func
    whole = not in_part or _converts(call, path)
    for argument in call.args if whole else ():
        yield from _unstable(argument, names, depth)
    for keyword in call.keywords:
        inside = _unstable(keyword.value, names, depth)
        if whole:
            yield from inside
        elif keyword.arg:
            # what is read of it may be what it was given: ``Event(id=uuid4()).id``
            yield from (replace(it, given_as=keyword.arg) for it in inside)


def _differs(path: str, call: ast.Call) -> bool:
    if path in _OF_A_VALUE:
        return not call.args and not any(it.arg == "value" for it in call.keywords)
    return path in _PATHS or (path.startswith(_MODULES) and path not in _STABLE)


def _converts(call: ast.Call, path: str) -> bool:
    if path in _CONVERTS or path.startswith(_CONVERTERS):
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr in _OF_TEXT


def _gives_a_date(call: ast.Call) -> bool:
    """``now.strftime("%Y-%m-%d")``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "strftime":
        return False
    return _is_format_of_a_date(next(iter(call.args), None))


def _of_name(name: ast.Name, names: Names, depth: int, in_part: bool) -> Iterator[Unstable]:
    if depth >= MOST_DEPTH or not isinstance(name.ctx, ast.Load):
        return
    yield from _of_values(name.id, names, depth + 1, in_part)
    # idem_key=key_of: a function that is given, not called
    place = names.resolve(name)
    callee = names.callee(ast.Call(func=name, args=[], keywords=[])) if place else None
    if callee is not None:
        yield from _in_function(names.of(callee), callee.function, depth + 1)


def _of_values(name: str, names: Names, depth: int, in_part: bool) -> Iterable[Unstable]:
    """Of the values that a name is assigned."""
    return names.once(
        ("unstable values", name, depth, in_part),
        lambda: _among(names.assigned(name), names, depth, in_part),
    )


def _among(
    values: Iterable[ast.expr], names: Names, depth: int, in_part: bool
) -> Iterable[Unstable]:
    """In their order, and each once."""
    every = (it for value in values for it in _unstable(value, names, depth, in_part=in_part))
    return dict.fromkeys(every)


def _of_attribute(node: ast.Attribute) -> Iterator[Unstable]:
    owner = node.value
    if node.attr in _OF_THE_DELIVERY and isinstance(owner, ast.Attribute):
        if owner.attr == "request" and isinstance(owner.value, ast.Name):
            yield Unstable(f"{owner.value.id}.request.{node.attr}")


def _in_function(
    names: Names, function: Function, depth: int, in_part: bool = False
) -> Iterable[Unstable]:
    """What makes the returned values differ."""

    def returned() -> Iterable[Unstable]:
        nodes = (it for it in ast.walk(function) if isinstance(it, ast.Return))
        values = [it.value for it in nodes if it.value is not None]
        return _among(values, names, depth, in_part)

    return names.once(("unstable returns", depth, in_part), returned)


def _sends(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _SENDS


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
