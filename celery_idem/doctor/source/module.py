"""One source file: its tree, what its names stand for, and which checks its comments silence."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

_IGNORE = re.compile(r"#\s*idem:\s*ignore(?:\[([A-Za-z0-9_,\s]*)\])?")


@dataclass(eq=False)
class Module:
    """A parsed file. ``name`` is its dotted name where it is known."""

    path: Path
    name: str
    text: str
    tree: ast.Module
    _silenced: dict[int, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, name: str = "") -> Module | None:
        """The file, or None where it can't be read or is not Python."""
        try:
            with tokenize.open(path) as file:
                text = file.read()
            module = cls(path, name, text, ast.parse(text, str(path)))
            module._silenced = dict(_silenced_lines(text))
        except (OSError, SyntaxError, UnicodeDecodeError, ValueError, tokenize.TokenError):
            return None
        return module

    def silences(self, check: str, first: int, last: int) -> bool:
        """Whether a comment on one of these lines says ``# idem: ignore`` or ``ignore[ID]``."""
        for line in range(first, last + 1):
            ids = self._silenced.get(line)
            if ids is not None and (not ids or check in ids):
                return True
        return False

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Functions of the module itself, by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, Function)}

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Classes of the module itself, by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """Imported name → what it stands for, wherever in the file it is imported."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    found[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{source}.{alias.name}"
        return found

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """Name → the values that it is given at the top level."""
        found: dict[str, list[ast.expr]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if node.value is not None:
                    found.setdefault(node.target.id, []).append(node.value)
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, *([node.module] if node.module else [])])

    def function_at(self, line: int) -> Function | None:
        """The function whose code begins at this line, its first decorator counted."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function) and first_line(node) == line:
                return node
        return None

    def class_of(self, function: Function) -> ast.ClassDef | None:
        """The class in whose body the function stands."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef) and function in node.body:
                return node
        return None


def first_line(node: Function | ast.ClassDef) -> int:
    """The line of the first decorator, else of the statement."""
    return min([node.lineno, *(it.lineno for it in node.decorator_list)])


def signature_end(node: Function | ast.ClassDef) -> int:
    """The last line of the head: decorators, name and arguments."""
    heads: list[ast.AST] = [*node.decorator_list]
    if isinstance(node, ast.ClassDef):
        heads += [*node.bases, *node.keywords]
    else:
        arguments = node.args
        heads += [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        heads += [it for it in (arguments.vararg, arguments.kwarg, node.returns) if it]
        heads += [*arguments.defaults, *(it for it in arguments.kw_defaults if it)]
    ends = [getattr(it, "end_lineno", 0) or 0 for it in heads]
    # a closing bracket and colon may stand on a line of their own
    return max(node.lineno, *ends, min(node.body[0].lineno - 1, max([node.lineno, *ends]) + 1))


def _silenced_lines(text: str) -> Iterator[tuple[int, frozenset[str]]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (found := _IGNORE.search(token.string)):
            ids = (found.group(1) or "").replace(",", " ").split()
            yield token.start[0], frozenset(ids)
