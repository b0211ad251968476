"""How much a task may return, as far as its text tells."""

from __future__ import annotations

import ast

from celery_idem.doctor.source.reader import TaskSource

#: Calls whose result is small.
_SMALL_CALLS = {"str", "int", "float", "bool", "len", "sum", "round", "hash", "abs"}
_SMALL_METHODS = {"hexdigest", "isoformat", "count", "exists", "strftime", "delete", "update"}
#: Fields whose value is small.
_SMALL_FIELDS = {"id", "pk", "sid", "status", "state", "name", "status_code", "rowcount", "key"}
_SMALL_FIELDS |= {"uuid", "reference", "receipt", "no", "number"}


def may_return_much(source: TaskSource) -> bool:
    """Whether some ``return`` gives a value that can't be seen to be small."""
    nodes = _own_nodes(source.function)
    assigned: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(node.value)
    returned = [it.value for it in nodes if isinstance(it, ast.Return) and it.value is not None]
    for value in returned:
        values = assigned.get(value.id, []) if isinstance(value, ast.Name) else [value]
        if not all(_is_small(it) for it in values):
            return True
    return False


def _is_small(node: ast.expr) -> bool:
    if isinstance(node, (ast.Constant, ast.Compare, ast.JoinedStr, ast.BoolOp, ast.UnaryOp)):
        return True
    if isinstance(node, ast.Dict):
        return all(_is_field(value) for value in node.values)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(_is_field(value) for value in node.elts)
    if isinstance(node, ast.IfExp):
        return _is_small(node.body) and _is_small(node.orelse)
    return _is_field(node)


def _is_field(node: ast.expr) -> bool:
    """A number, a short text, an id: what may stand in a small answer."""
    if isinstance(node, (ast.Constant, ast.Compare, ast.JoinedStr, ast.Name)):
        # a name inside an answer is mostly an argument
        return not isinstance(node, ast.Name) or node.id != "self"
    if isinstance(node, ast.Attribute):
        return node.attr.lower() in _SMALL_FIELDS
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value).lower() in _SMALL_FIELDS
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name):
            return function.id in _SMALL_CALLS
        return isinstance(function, ast.Attribute) and function.attr in _SMALL_METHODS
    return False


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """Everything in the function that is not in a function inside it."""
    found: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        found.append(node)
        todo.extend(ast.iter_child_nodes(node))
    return found
