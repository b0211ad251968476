"""The idempotency key: the name of one piece of work, made from its arguments and nothing else.

A template such as ``"order:{order_id}"`` or ``"{event[id]}:{user.email}"`` is filled in from the
arguments bound to the task's signature, defaults included. Nothing is executed: only mapping
items, sequence indexes and plain data attributes are read.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import re
import sys
import types
import unicodedata
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from string import Formatter
from typing import Any
from uuid import UUID

from celery_idem.core.errors import ConfigError, KeyInvalid

#: Characters of the key that a user gives.
MAX_KEY_CHARS = 255
#: Before a task id: the record of a revoked one. Every worker reads them all at its start, so they
#: are stored as they are where other keys are hashed; an id is no secret. No task is named like it.
REVOKED_TASK = "revoked-task:"
#: Characters of a whole key, with the task's name before it.
MAX_RECORD_KEY_CHARS = 512

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
_JOINERS = "\u200c\u200d"
_PLAIN = {str, int, float, bool, type(None)}
_PATH = re.compile(r"\.([A-Za-z][A-Za-z0-9_]*)|\[([^\[\]]+)\]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSTABLE_MODULES = {"random", "secrets", "time"}
_UNSTABLE_NAMES = {
    "uuid": {"uuid1", "uuid4", "uuid6", "uuid7"},
    "datetime": {"now", "utcnow", "today"},
    "os": {"urandom", "getpid"},
}
#: Functions that name another module as theirs, or none.
_WRITTEN_IN_C = {
    "os": _UNSTABLE_NAMES["os"],
    "random": {"random", "getrandbits"},
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    path: tuple[str, ...]
    text: str  #: as written, for errors


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A parsed template: literals and fields in turn."""

    text: str
    parts: tuple[str | _Field, ...]
    separators: frozenset[str]  #: characters that values may not hold unescaped

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments that the template reads."""
        return tuple(part.name for part in self.parts if isinstance(part, _Field))

    def fill(self, arguments: Mapping[str, Any]) -> str:
        """The key of these bound arguments.

        Raises :class:`KeyInvalid` for a missing name, an empty or ``None`` value, or a value that
        has no stable text.
        """
        out = []
        for part in self.parts:
            if isinstance(part, str):
                out.append(part)
                continue
            value = _look_up(part, arguments, self.text)
            text = _as_text(value, part, self.text)
            out.append("".join(_escaped(c) if c in self.separators else c for c in text))
        return "".join(out)


def parse_template(text: str, *, one_for_all: bool = False) -> KeyTemplate:
    """Read a template once. Raises :class:`ConfigError` for one that can't make good keys.

    ``one_for_all``: it may be the same key for every call (what cools down).
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"idem_key must be a non-empty template or a callable, not {text!r}")
    parts: list[str | _Field] = []
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"idem_key {text!r} is not a template: {error}") from error
    for literal, name, spec, conversion in pieces:
        if literal:
            parts.append(literal)
        if name is None:
            continue
        if spec or conversion:
            raise ConfigError(
                f"idem_key {text!r}: {{{name}}} may not have a format or a conversion; the key is "
                "made of the value's plain text (use a callable for anything else)"
            )
        if parts and isinstance(parts[-1], _Field):
            raise ConfigError(
                f"idem_key {text!r}: put text between {{{parts[-1].text}}} and {{{name}}}, or two "
                "different calls may get one key"
            )
        parts.append(_field(name, text))
    fields = [part for part in parts if isinstance(part, _Field)]
    if not fields and not one_for_all:
        raise ConfigError(
            f"idem_key {text!r} has no {{argument}}: every call of the task would be one piece of "
            "work; name what tells two calls apart, or how often it may be done (cooldown_s)"
        )
    separators: set[str] = set()
    if len(fields) > 1:
        between = {c for part in parts[1:-1] if isinstance(part, str) for c in part}
        if "%" in between:
            raise ConfigError(
                f"idem_key {text!r} holds a '%' between two arguments, which marks escaped "
                "characters of values; use another separator, such as ':'"
            )
        separators = {"%"} | between
    return KeyTemplate(text, tuple(parts), frozenset(separators))


def check_names(template: KeyTemplate, signature: inspect.Signature, task_name: str) -> None:
    """Raise :class:`ConfigError` when the template reads what the task doesn't take."""
    takes = signature.parameters
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        return
    for name in template.names:
        if name not in takes:
            raise ConfigError(
                f"idem_key {template.text!r} of {task_name} reads {name!r}, which the task doesn't "
                f"take; it takes {', '.join(takes) or 'nothing'}"
            )


def bind(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name, defaults filled in, ``**kwargs`` merged. ``TypeError`` as a call."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments = {**arguments.pop(name), **arguments}
    return arguments


def binder(
    signature: inspect.Signature,
) -> Callable[[Sequence[Any], Mapping[str, Any]], dict[str, Any]]:
    """:func:`bind` for many calls of one signature, several times as quick where it has no
    ``*args``, ``**kwargs`` and positional-only parameters."""
    parameters = signature.parameters.values()
    if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        return functools.partial(bind, signature)
    names = frozenset(signature.parameters)
    positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def quick(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(zip(positional, args, strict=False))
        arguments = {**defaults, **given, **kwargs}
        wrong = len(args) > len(positional) or not given.keys().isdisjoint(kwargs)
        if wrong or arguments.keys() != names:
            return bind(signature, args, kwargs)  # which says what is wrong
        return arguments

    return quick


def said(signature: inspect.Signature) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Of bound arguments those that differ from their defaults: so a parameter with a default that
    the next release adds, or one that it drops, makes no other call of a message under way."""
    defaults = {
        p.name: p.default for p in signature.parameters.values() if p.default is not p.empty
    }
    texts = {name: _encode(_canonical(default)) for name, default in defaults.items()}

    def differs(name: str, value: Any) -> bool:
        if name not in defaults:
            return True
        return value is not defaults[name] and _encode(_canonical(value)) != texts[name]

    return lambda arguments: {n: v for n, v in arguments.items() if differs(n, v)}


def check_key(key: object, where: str) -> str:
    """The key, when it can name a piece of work; else :class:`KeyInvalid` that says why."""
    if not isinstance(key, str):
        raise KeyInvalid(f"{where}: the key must be a text, not {type(key).__name__}")
    if not key.strip():
        raise KeyInvalid(f"{where}: the key is empty; it must name one piece of work")
    if len(key) > MAX_KEY_CHARS:
        raise KeyInvalid(
            f"{where}: the key has {len(key)} characters, allowed are {MAX_KEY_CHARS}; "
            "hash what is long (hashlib.sha256(...).hexdigest())"
        )
    if not key.isprintable() and not all(map(_is_text, key)):
        raise KeyInvalid(f"{where}: the key {key!r} holds characters that can't be printed")
    return key


def fingerprint(value: object) -> str:
    """32 hex digits over the canonical JSON of a value; equal for calls that mean the same."""
    text = _encode(_canonical(value))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def no_plain_function(function: Callable[..., Any]) -> str:
    """What it is where a call of it runs nothing: async, or a generator. Empty for a plain one."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "async"
    return "a generator" if inspect.isgeneratorfunction(function) else ""


def unstable_names(function: Callable[..., Any]) -> list[str]:
    """What in a key function comes from a clock or a random source (S-I2); empty when stable.

    Looks at the names that the compiled code uses; runs nothing.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    found: list[str] = []
    scope = getattr(function, "__globals__", {})
    for current in _codes(code):
        names = set(current.co_names)
        for name in current.co_names:
            found += _unstable(name, scope.get(name), names)
    return sorted(set(found))


# --- pieces -----------------------------------------------------------------------------


def _field(name: str, template: str) -> _Field:
    head = _NAME.match(name)
    if head is None:
        raise ConfigError(
            f"idem_key {template!r}: {{{name}}} must begin with the name of an argument"
        )
    path, at = [], head.end()
    while at < len(name):
        step = _PATH.match(name, at)
        if step is None:
            raise ConfigError(
                f"idem_key {template!r}: can't read {{{name}}}; allowed are {{arg}}, {{arg.field}} "
                "and {arg[index]}, with no leading underscore"
            )
        path.append(step.group(1) or step.group(2))
        at = step.end()
    return _Field(head.group(), tuple(path), name)


def _look_up(field: _Field, arguments: Mapping[str, Any], template: str) -> Any:
    if field.name not in arguments:
        raise KeyInvalid(
            f"idem_key {template!r}: the call has no argument {field.name!r}; it has "
            f"{', '.join(arguments) or 'none'}"
        )
    value = arguments[field.name]
    for step in field.path:
        try:
            value = _step_into(value, step)
        except (KeyError, IndexError, AttributeError, ValueError, TypeError):
            raise KeyInvalid(
                f"idem_key {template!r}: {{{field.text}}} finds no {step!r} in a "
                f"{type(value).__name__}"
            ) from None
    return value


def _step_into(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        if step in value:
            return value[step]
        return value[int(step)]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if step.lstrip("-").isdigit():
            return value[int(step)]
        fields = getattr(type(value), "_fields", ())
        return value[fields.index(step)]
    # Data only: a property or a descriptor would run code that a message chose.
    data = getattr(value, "__dict__", None)
    if data is not None and step in data:
        return data[step]
    slot = getattr(type(value), "__dict__", {}).get(step)
    if isinstance(slot, types.MemberDescriptorType):
        return getattr(value, step)
    raise AttributeError(step)


def _as_text(value: Any, field: _Field, template: str) -> str:
    where = f"idem_key {template!r}: {{{field.text}}}"
    if value is None or value == "":
        raise KeyInvalid(
            f"{where} is {value!r}: all such calls would be one piece of work; pass a value, or "
            "use a callable that says what an absent one means"
        )
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float, Decimal, UUID)):
        return str(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Mapping, Sequence, Set)) and not isinstance(value, (bytes, bytearray)):
        return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"))
    raise KeyInvalid(
        f"{where} is a {type(value).__name__}, which has no stable text; name one of its fields, "
        "or use a callable"
    )


def _is_text(char: str) -> bool:
    """Python calls some parts of plain text unprintable: the ideographic space between Japanese
    names, and the joiners within Persian words and emoji."""
    return char.isprintable() or unicodedata.category(char) == "Zs" or char in _JOINERS


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _canonical(value: Any) -> Any:
    """The value as the worker sees it after JSON, so that both sides of the wire agree."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _canonical(v) for k, v in value.items()}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, Set):
        return sorted((_canonical(v) for v in value), key=lambda v: json.dumps(v, sort_keys=True))
    if isinstance(value, Sequence):
        return [_canonical(v) for v in value]
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _canonical(getattr(value, f.name)) for f in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)  # pydantic
    if callable(dump):
        return _canonical(dump(mode="json"))
    # No canonical form: it counts by its type alone, which can't refuse a call wrongly.
    return {"type": f"{type(value).__module__}.{type(value).__qualname__}"}


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [code, *(deeper for c in inner for deeper in _codes(c))]


def _unstable(name: str, value: Any, names: set[str]) -> list[str]:
    if isinstance(value, types.ModuleType):
        root = value.__name__
        if root in _UNSTABLE_MODULES:
            return [root]
        return [f"{root}.{n}" for n in names & _UNSTABLE_NAMES.get(root, set())]
    if value is datetime or value is date:
        return [f"datetime.{n}" for n in names & _UNSTABLE_NAMES["datetime"]]
    for root, allowed in _WRITTEN_IN_C.items():
        for known in allowed:
            if value is not None and value is getattr(sys.modules.get(root), known, None):
                return [f"{root}.{known}"]
    module = getattr(value, "__module__", None)
    if module in _UNSTABLE_MODULES and callable(value):
        return [f"{module}.{name}"]
    if module in _UNSTABLE_NAMES and name in _UNSTABLE_NAMES[module]:
        return [f"{module}.{name}"]
    return []
