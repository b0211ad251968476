"""What a name in a source file stands for, as a dotted path: ``requests.Session().post``.

Flow is not followed: an assigned name stands for the first value that can be told. What can't be
told is ``""``, and then nothing is said of it.

A name may be assigned many times, from itself or from others: ``text = text.replace("a", "")``. So
every answer is kept, and looked for once: else each assignment would be followed by all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from celery_idem.doctor.source.module import Function, Module

if TYPE_CHECKING:
    from celery_idem.doctor.source.reader import Reader

Kept = TypeVar("Kept")

#: How many names are looked through for one: aliases of aliases, and re-exports.
MOST_HOPS = 16
_PROPERTIES = {
    "property", "cached_property", "functools.cached_property",
    "django.utils.functional.cached_property",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Callee:
    """A function of the project, where it stands."""

    module: Module
    function: Function
    owner: ast.ClassDef | None = None


def names_in(
    reader: Reader,
    module: Module,
    function: Function | None = None,
    owner: ast.ClassDef | None = None,
    outer: Names | None = None,
) -> Names:
    """The names that code in a function, class or module sees: the same for all who ask."""
    key = (module, function, owner, outer)
    if key not in reader.names:
        reader.names[key] = Names(reader, module, function, owner, outer)
    return reader.names[key]


class Names:
    """The names that code in one function, class or module sees. Made by ``names_in``."""

    def __init__(
        self,
        reader: Reader,
        module: Module,
        function: Function | None = None,
        owner: ast.ClassDef | None = None,
        outer: Names | None = None,
    ) -> None:
        self.reader, self.module, self.function, self.owner = reader, module, function, owner
        self._outer = outer
        self._kept: dict[Hashable, Any] = {}
        self._assigned = dict(_assignments(function)) if function else {}
        self._parameters = _parameters(function) if function else {}
        self._inner = {
            node.name: node
            for node in (ast.walk(function) if function else ())
            if isinstance(node, Function) and node is not function
        }

    def resolve(self, node: ast.expr | None, hops: int = MOST_HOPS) -> str:
        """The dotted path of an expression; ``""`` where it can't be told."""
        if hops <= 0 or node is None:
            return ""
        if isinstance(node, ast.Name):
            return self._name(node.id, hops - 1)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, hops - 1)
        if isinstance(node, ast.Call):
            return self._call(node, hops - 1)
        if isinstance(node, (ast.Await, ast.NamedExpr)):
            return self.resolve(node.value, hops - 1)
        if isinstance(node, ast.Subscript):
            base = self.resolve(node.value, hops - 1)
            return f"{base}[]" if base else ""
        if isinstance(node, ast.BoolOp):
            return next(filter(None, (self.resolve(it, hops - 1) for it in node.values)), "")
        if isinstance(node, ast.IfExp):
            return self.resolve(node.body, hops - 1) or self.resolve(node.orelse, hops - 1)
        return ""

    def assigned(self, name: str) -> list[ast.expr]:
        """The values that this function, or those around it, assign to a name."""
        values = self._assigned.get(name, [])
        return values or (self._outer.assigned(name) if self._outer else [])

    def behind(self, node: ast.expr) -> list[ast.expr]:
        """The expression itself; of a name its values, through names that stand for names."""
        if not isinstance(node, ast.Name):
            return [node]
        return self.once(("behind", node.id), lambda: self._behind(node))

    def once(self, key: Hashable, find: Callable[[], Kept]) -> Kept:
        """What is found for a key, looked for at the first time only."""
        if key not in self._kept:
            self._kept[key] = find()
        found: Kept = self._kept[key]
        return found

    def callee(self, call: ast.Call) -> Callee | None:
        """The project's function that is called, if it is one."""
        inner = self._inner_function(call.func)
        if inner is not None:
            return Callee(self.module, inner, self.owner)
        path = self.resolve(call.func)
        return find_function(self.reader, path) if path and not path.endswith(")") else None

    def of(self, callee: Callee) -> Names:
        """The names that the called function sees."""
        inside = callee.function in self._inner.values()
        outer = self if inside else None
        return names_in(self.reader, callee.module, callee.function, callee.owner, outer)

    # -- pieces

    def _inner_function(self, node: ast.expr) -> Function | None:
        if not isinstance(node, ast.Name):
            return None
        found = self._inner.get(node.id)
        return found or (self._outer._inner_function(node) if self._outer else None)

    def _behind(self, name: ast.Name) -> list[ast.expr]:
        found: list[ast.expr] = []
        todo, seen = [name.id], {name.id}
        while todo:
            for value in self.assigned(todo.pop()):
                if not isinstance(value, ast.Name):
                    found.append(value)
                elif value.id not in seen:
                    seen.add(value.id)
                    todo.append(value.id)
        return found

    def _name(self, name: str, hops: int) -> str:
        return self.once(("name", name, hops), lambda: self._find_name(name, hops))

    def _find_name(self, name: str, hops: int) -> str:
        for value in self._assigned.get(name, []):
            found = self.resolve(value, hops)
            if found:
                return found
        if name in self._assigned:
            return ""
        if name in self._parameters:
            annotation = self._parameters[name]
            path = self.resolve(annotation, hops) if annotation is not None else ""
            return f"{path}()" if path else ""
        if self._outer is not None:
            return self._outer._name(name, hops)
        return module_name(self.reader, self.module, name, hops)

    def _attribute(self, node: ast.Attribute, hops: int) -> str:
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and self.owner:
            return member(self.reader, self.module, self.owner, node.attr, hops)
        base = self.resolve(node.value, hops)
        return shared_value(self.reader, f"{base}.{node.attr}", hops) if base else ""

    def _call(self, node: ast.Call, hops: int) -> str:
        path = self.resolve(node.func, hops)
        if not path:
            return ""
        callee = find_function(self.reader, path) if hops else None
        if callee is not None:
            return returned(self.reader, callee, hops)
        return f"{path}()"


def calls_in(reader: Reader, module: Module) -> Iterator[tuple[Names, ast.Call]]:
    """Every call in a file, with the names that it sees."""
    return _calls_below(module.tree, names_in(reader, module))


def _calls_below(node: ast.AST, names: Names) -> Iterator[tuple[Names, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            # decorators are evaluated outside
            for decorator in child.decorator_list:
                yield from _calls_below(ast.Expr(decorator), names)
            outer = names if names.function else None
            inner = names_in(names.reader, names.module, child, names.owner, outer)
            for statement in child.body:
                yield from _calls_below(ast.Module([statement], []), inner)
        elif isinstance(child, ast.ClassDef):
            yield from _calls_below(child, names_in(names.reader, names.module, None, child))
        else:
            if isinstance(child, ast.Call):
                yield names, child
            yield from _calls_below(child, names)


def module_name(reader: Reader, module: Module, name: str, hops: int = MOST_HOPS) -> str:
    """What a name stands for at the top level of a module."""
    if hops <= 0:
        return ""
    if name in module.imports:
        return shared_value(reader, module.imports[name], hops)
    if name in module.functions or name in module.classes:
        return f"{module.name}.{name}"
    values = module.assigned.get(name)
    if values is None:
        return name
    names = names_in(reader, module)
    return names.once(
        ("of the module", name, hops),
        lambda: next(filter(None, (names.resolve(it, hops - 1) for it in values)), ""),
    )


def shared_value(reader: Reader, path: str, hops: int = MOST_HOPS) -> str:
    """What a module of the project assigns to the name of this path, or imports under it; else
    the path itself: ``shop.clients.session`` is ``requests.Session()``."""
    module, rest = _split(reader, path) if hops > 0 else (None, [])
    if module is None or len(rest) != 1:
        return path
    name = rest[0]
    if name in module.functions or name in module.classes:
        return path
    if name not in module.assigned and name not in module.imports:
        return path
    return module_name(reader, module, name, hops - 1) or path


def member(
    reader: Reader, module: Module, owner: ast.ClassDef, name: str, hops: int = MOST_HOPS
) -> str:
    """What ``self.name`` stands for in a class: a method's path, or the value of an attribute."""
    if hops <= 0:
        return ""
    names = names_in(reader, module)
    return names.once(("member", owner, name, hops), lambda: _member(names, owner, name, hops))


def _member(names: Names, owner: ast.ClassDef, name: str, hops: int) -> str:
    reader, module = names.reader, names.module
    for statement in owner.body:
        if isinstance(statement, Function) and statement.name == name:
            if any(names.resolve(it, hops - 1) in _PROPERTIES for it in statement.decorator_list):
                return returned(reader, Callee(module, statement, owner), hops - 1)
            return f"{module.name}.{owner.name}.{name}"
    for value, inside in _attribute_values(owner, name):
        found = names_in(reader, module, inside, owner).resolve(value, hops - 1)
        if found:
            return found
    for base in owner.bases:
        place = find_class(reader, names.resolve(base, hops - 1))
        found = member(reader, place[0], place[1], name, hops - 1) if place else ""
        if found:
            return found
    return ""


def returned(reader: Reader, callee: Callee, hops: int = MOST_HOPS) -> str:
    """What a function of the project returns."""
    names = names_in(reader, callee.module, callee.function, callee.owner)
    return names.once(("returned", hops), lambda: _returned(names, callee.function, hops))


def _returned(names: Names, function: Function, hops: int) -> str:
    for node in ast.walk(function):
        if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            found = names.resolve(node.value, hops - 1)
            if found:
                return found
    return ""


def find_function(reader: Reader, path: str, hops: int = MOST_HOPS) -> Callee | None:
    """The project's function or method of this dotted path."""
    module, rest = _split(reader, path)
    if module is None or not rest or hops <= 0:
        return None
    if len(rest) == 1 and rest[0] in module.functions:
        return Callee(module, module.functions[rest[0]])
    if len(rest) == 2 and rest[0] in module.classes:
        owner = module.classes[rest[0]]
        for statement in owner.body:
            if isinstance(statement, Function) and statement.name == rest[1]:
                return Callee(module, statement, owner)
    return _imported(reader, module, rest, hops)


def _imported(reader: Reader, module: Module, rest: list[str], hops: int) -> Callee | None:
    further = module.imports.get(rest[0])
    if further is None:
        return None
    return find_function(reader, ".".join([further, *rest[1:]]), hops - 1)


def find_class(
    reader: Reader, path: str, hops: int = MOST_HOPS
) -> tuple[Module, ast.ClassDef] | None:
    """The project's class of this dotted path."""
    module, rest = _split(reader, path)
    if module is None or len(rest) != 1 or hops <= 0:
        return None
    if rest[0] in module.classes:
        return module, module.classes[rest[0]]
    further = module.imports.get(rest[0])
    return find_class(reader, further, hops - 1) if further else None


def _split(reader: Reader, path: str) -> tuple[Module | None, list[str]]:
    """The project's module that the path begins with, and what is left."""
    parts = path.split(".")
    if "()" in path or "[]" in path:
        return None, []
    for length in range(len(parts) - 1, 0, -1):
        module = reader.project_module(".".join(parts[:length]))
        if module is not None:
            return module, parts[length:]
    return None, []


def _assignments(function: Function) -> Iterator[tuple[str, list[ast.expr]]]:
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        for target, value in _pairs(node):
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(value)
    yield from found.items()


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values of one node, as far as they stand side by side."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                # ``item, created = …``: each name stands for the whole
                yield from ((it, node.value) for it in target.elts)
            else:
                yield target, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            if item.optional_vars is not None:
                yield item.optional_vars, item.context_expr


def _parameters(function: Function) -> dict[str, ast.expr | None]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [it for it in (arguments.vararg, arguments.kwarg) if it is not None]
    return {it.arg: it.annotation for it in every}


def _attribute_values(owner: ast.ClassDef, name: str) -> Iterator[tuple[ast.expr, Function | None]]:
    for statement in owner.body:
        for target, value in _pairs(statement):
            if isinstance(target, ast.Name) and target.id == name:
                yield value, None
    for method in owner.body:
        if not isinstance(method, Function):
            continue
        for node in ast.walk(method):
            for target, value in _pairs(node):
                if isinstance(target, ast.Attribute) and target.attr == name:
                    yield value, method
