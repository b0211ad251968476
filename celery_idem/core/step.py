"""What is kept of a step, and how a function is named in it."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from enum import Enum
from typing import Any


class StepState(str, Enum):
    """How a step stands."""

    DONE = "done"
    STARTED = "started"  #: at most once: marked before it ran, and not seen to end
    FAILED = "failed"  #: raised an exception that is an outcome (``memoise_errors``)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """How a step stands, under which function, and its packed result."""

    state: StepState
    function: str
    result: bytes = b""
    error: str = ""  #: qualified name of a memoised exception

    def pack(self) -> bytes:
        """One byte string: a line of JSON, then the result as it is."""
        head = json.dumps([self.state.value, self.function, self.error])
        return head.encode() + b"\n" + self.result

    @classmethod
    def unpack(cls, packed: bytes) -> StepRecord:
        """The inverse of :meth:`pack`; raises ``ValueError`` for bytes that are not one."""
        head, _, result = packed.partition(b"\n")
        fields = json.loads(head)
        if not isinstance(fields, list):
            raise ValueError(f"not a step: its first line holds a {type(fields).__name__}")
        state, function, error = fields
        return cls(StepState(state), function, result, error)


def bare(function: Any) -> Any:
    """The function inside of partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def function_name(function: Any) -> str:
    """Module and qualified name: what a step was recorded under."""
    inner = bare(function)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{getattr(inner, '__module__', '')}.{name}"
