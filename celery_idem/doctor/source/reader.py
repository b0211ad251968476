"""Finds the source of a project's tasks, and keeps the files that were read."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import sysconfig
import types
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import celery

from celery_idem.doctor.finding import Place
from celery_idem.doctor.source.module import Function, Module, first_line, signature_end

if TYPE_CHECKING:
    from celery_idem.doctor.source.names import Names

#: where Celery and this package are
_NOT_THE_PROJECTS = (f"{Path(celery.__file__).parent}/", f"{Path(__file__).parents[2]}/")


@dataclass(frozen=True)
class TaskSource:
    """The body of a task."""

    module: Module
    function: Function
    owner: ast.ClassDef | None = None  #: the class of a class-based task


_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
#: Files of a package that are read at most.
MOST_FILES = 5000
_OF_INTEREST = re.compile(rb"countdown|idem_key|idempotent|\.step\b|zpop|zmpop|zadd")
_NOT_READ = re.compile(r"(^|/)(tests?|migrations|node_modules|\.[^/]*)/|(^|/)(test_|conftest)")


class Reader:
    """Reads each file once. Nothing is imported: what is not loaded is looked up as a file, in the
    packages that are."""

    def __init__(self) -> None:
        self._modules: dict[Path, Module | None] = {}
        self._unloaded: dict[str, Path | None] = {}
        #: what code in each place sees: kept by ``names_in``
        self.names: dict[Hashable, Names] = {}

    def module(self, path: str | Path, name: str = "") -> Module | None:
        """The parsed file, or None where it can't be read. Its name is told from its place where
        it is not given: what is kept is the same, whoever asks first."""
        place = Path(path)
        if place not in self._modules:
            self._modules[place] = Module.read(place, name or _dotted_name(place))
        return self._modules[place]

    def loaded_module(self, name: str) -> Module | None:
        """The source of a module that this process has imported."""
        path = getattr(sys.modules.get(name), "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            return None
        return self.module(path, name)

    def project_module(self, name: str) -> Module | None:
        """The source of a module of the project, loaded or not: not of the standard library, and of
        no package that was installed."""
        module = self.loaded_module(name) or self._unloaded_module(name)
        return None if module is None or _is_installed(module.path) else module

    def _unloaded_module(self, name: str) -> Module | None:
        """What only a function imports, when it runs."""
        if name not in self._unloaded:
            self._unloaded[name] = None if name in sys.modules else _file_of(name)
        path = self._unloaded[name]
        return None if path is None else self.module(path, name)

    def neighbours(self, paths: Iterable[str]) -> list[Module]:
        """These files and all others of the packages that they are in, tests left out, as far as
        they hold a word of what checks look for. A file that is in no package stands for itself."""
        found: set[Path] = set()
        for path in map(Path, paths):
            top = _package_of(path)
            found |= {path} if top is None else set(itertools.islice(_files(top), MOST_FILES))
        modules = (self.module(path) for path in sorted(found) if _is_of_interest(path))
        return [it for it in modules if it is not None]

    def source_of_task(self, task: Any) -> TaskSource | None:
        """The function that the task runs, as it is written."""
        code = _code_of(task)
        if code is None or code.co_filename.startswith(_NOT_THE_PROJECTS):
            return None
        module = self.module(code.co_filename, str(task.__module__))
        if module is None:
            return None
        function = module.function_at(code.co_firstlineno)
        if function is None:
            return None
        # of the task's own class, which may inherit its ``run``
        own = None if getattr(task, "_decorated", False) else self._class_of(task, module)
        return TaskSource(module, function, own or module.class_of(function))

    @staticmethod
    def _class_of(task: Any, module: Module) -> ast.ClassDef | None:
        if str(type(task).__module__) != module.name:
            return None
        return module.classes.get(type(task).__name__)

    def place_of_task(self, task: Any) -> Place | None:
        """The head of the task's function, or of its class."""
        source = self.source_of_task(task)
        if source is None:
            return None
        head: Any = source.function
        if not getattr(task, "_decorated", False):
            own = source.module.classes.get(type(task).__name__)
            head = own or source.module.class_of(source.function) or head
        return Place(str(source.module.path), first_line(head), _head_end(head))

    def silences(self, check: str, place: Place) -> bool:
        """Whether a comment at the place says so."""
        module = self.module(place.path)
        return module is not None and module.silences(check, place.line, place.end_line)


def _is_installed(path: Path) -> bool:
    text = str(path)
    if text.startswith(_NOT_THE_PROJECTS) or text.startswith(_STANDARD_LIBRARY):
        return True
    return "site-packages" in path.parts or "dist-packages" in path.parts


def _is_of_interest(path: Path) -> bool:
    try:
        return _OF_INTEREST.search(path.read_bytes()) is not None
    except OSError:
        return False


def _package_of(path: Path) -> Path | None:
    """The outermost package that the file is in."""
    found = None
    for folder in path.parents:
        if not (folder / "__init__.py").exists():
            break
        found = folder
    return found


def _dotted_name(path: Path) -> str:
    """The name under which the file is loaded; else the one that its packages give it."""
    parts = path.with_suffix("").parts
    parts = parts[:-1] if path.name == "__init__.py" else parts
    names = [".".join(parts[start:]) for start in range(1, len(parts))]
    for name in [*names, "__main__"]:
        if getattr(sys.modules.get(name), "__file__", None) == str(path):
            return name
    top = _package_of(path)
    return parts[-1] if top is None else ".".join(parts[len(top.parent.parts) :])


def _file_of(name: str) -> Path | None:
    """The file of a module, in a package of the project that is loaded."""
    top, *rest = name.split(".")
    spec = getattr(sys.modules.get(top), "__spec__", None)
    if not rest or not all(rest):
        return None
    for folder in getattr(spec, "submodule_search_locations", None) or ():
        base = Path(folder, *rest)
        for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if not _is_installed(path) and path.is_file():
                return path
    return None


def _files(top: Path) -> Iterator[Path]:
    for path in sorted(top.rglob("*.py")):
        if not _NOT_READ.search(path.relative_to(top.parent).as_posix()):
            yield path


def _head_end(node: Any) -> int:
    end = signature_end(node)
    if hasattr(node, "bases"):  # a class: its options stand before its first method
        for statement in node.body:
            if hasattr(statement, "args"):
                break
            end = max(end, statement.end_lineno or 0)
    return end


def _code_of(task: Any) -> types.CodeType | None:
    function = getattr(task, "_orig_run", None) or task.run
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, types.CodeType) else None
