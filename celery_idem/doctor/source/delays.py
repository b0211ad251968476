"""Delays that a task's body writes as numbers: ``countdown=`` of its retries and of its calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from celery_idem.doctor.source.module import Module
from celery_idem.doctor.source.reader import TaskSource


@dataclass(frozen=True)
class Delay:
    """A call that delays a message; None seconds where no number is written."""

    seconds: float | None
    call: ast.Call


def longest_retry_countdown_s(source: TaskSource | None) -> float | None:
    """The longest ``self.retry(countdown=<number>)`` of a body, in seconds; None without one."""
    retries = retries_of(source) if source is not None else []
    return max((it.seconds for it in retries if it.seconds is not None), default=None)


def retries_of(source: TaskSource) -> list[Delay]:
    """The retries in a body."""
    return list(_delays(source.function, ("retry",)))


def calls_of(module: Module) -> list[Delay]:
    """Calls and signatures of tasks in a file that have a countdown."""
    methods = ("apply_async", "apply_async_on_commit", "set", "signature")
    return [it for it in _delays(module.tree, methods) if it.seconds is not None]


def _delays(tree: ast.AST, methods: tuple[str, ...]) -> Iterator[Delay]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in methods:
            given = [it.value for it in node.keywords if it.arg == "countdown"]
            yield Delay(number(given[0]) if given else None, node)


def number(node: ast.AST) -> float | None:
    """A number that is written out: ``90``, ``60 * 60``, ``2 ** 3``; None for anything else."""
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        return None
    if isinstance(node, ast.BinOp):
        left, right = number(node.left), number(node.right)
        if left is None or right is None:
            return None
        return _of_two(node.op, left, right)
    return None


def _of_two(operator: ast.operator, left: float, right: float) -> float | None:
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Div) and right:
        return left / right
    if isinstance(operator, ast.Pow) and abs(left) <= 1000 and 0 <= right <= 16:
        return float(left**right)
    return None
