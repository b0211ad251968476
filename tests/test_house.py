"""The order of the house: who may import whom, how long a file is, what a script says of itself.

The rooms stand in ``ROOMS`` from the inside out. A room imports only from rooms before it.
"""

from __future__ import annotations

import ast
import importlib.util
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ROOT / "celery_idem"

#: from the inside out; rooms that stand in one line may know each other
ROOMS: list[set[str]] = [
    {"core"},
    {"stores"},
    {"results"},
    {"signals"},
    {"confirming"},
    {"lease"},
    {"run_times"},
    {"binding"},
    {"guard"},
    {"steps"},
    # one room in several files: the life of a task
    {
        "aborts",
        "conditions",
        "delivery",
        "ending",
        "followups",
        "many",
        "on_commit",
        "options",
        "redeliver",
        "request",
        "run",
        "started",
        "suspects",
        "task",
    },
    {"revoking"},
    {"lanes"},
    {"deadletters"},
    {"visibility"},
    {"unreported"},
    {"transport"},
    {"consumer_timeout"},
    {"metrics"},
    {"doctor"},
    {"tuning"},
    {"worker"},
    {"django"},
    {"cli"},
]

#: (importer, imported) → why it may look outwards. Only inside a function.
OUTWARDS: dict[tuple[str, str], str] = {
    ("task", "worker"): "the first bound task installs what its worker needs",
    ("task", "lanes"): "a task sent with a lane is routed there",
}

#: room → the packages that it must not know; "*" holds for every room but those named in KNOWS
FOREIGN: dict[str, set[str]] = {
    "core": {"celery", "kombu", "billiard", "amqp", "redis", "django", "click", "rich"},
    "stores": {"celery", "kombu", "django", "click", "rich"},
    "*": {"django", "click", "rich"},
}
KNOWS: dict[str, set[str]] = {"django": {"django", "click"}, "cli": {"click", "rich"}}
#: packages that a room may import inside a function only
LAZY: dict[str, set[str]] = {
    "binding": {"django"},
    "on_commit": {"django"},
    "cli": {"django", "rich"},
}

MAX_LINES = 400
NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc"}


@dataclass(frozen=True, slots=True)
class Import:
    path: Path
    line: int
    module: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"


def sources() -> list[Path]:
    return sorted(HOUSE.rglob("*.py"))


def room_of(module: str) -> str | None:
    """``celery_idem.stores.redis`` → ``stores``; None for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[Import]:
    module = module_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(), str(path))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        lazy = id(node) in inside
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, lazy)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                # "from celery_idem import core" names a room, "from … import Claim" does not
                deeper = f"{base}.{alias.name}"
                yield Import(path, node.lineno, deeper if is_module(deeper) else base, lazy)


def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def rank(room: str) -> int:
    return next(index for index, rooms in enumerate(ROOMS) if room in rooms)


def rooms_present() -> list[str]:
    return sorted({room for path in sources() if (room := room_of(module_of(path)))})


@pytest.mark.parametrize("room", rooms_present())
def test_every_room_has_its_place_in_the_order(room):
    known = set().union(*ROOMS)

    assert room in known, f"give {room!r} its place in ROOMS"


@pytest.mark.parametrize("room", rooms_present())
def test_a_room_imports_only_from_rooms_above_it(room):
    wrong = []
    for path in sources():
        if room_of(module_of(path)) != room:
            continue
        for found in imports_of(path):
            if found.module.split(".")[0] != HOUSE.name:
                continue
            other = room_of(found.module)
            if other is None:
                wrong.append(f"{found}: name the room, not the whole house")
            elif rank(other) > rank(room) and not (found.lazy and (room, other) in OUTWARDS):
                wrong.append(str(found))

    assert wrong == []


@pytest.mark.parametrize("room", rooms_present())
def test_a_room_does_not_know_what_is_not_its_business(room):
    forbidden = FOREIGN.get(room, FOREIGN["*"]) - KNOWS.get(room, set())
    lazy_only = LAZY.get(room, set())
    wrong = []
    for path in sources():
        if room_of(module_of(path)) != room:
            continue
        for found in imports_of(path):
            package = found.module.split(".")[0]
            if package in lazy_only and found.lazy:
                continue
            if package in forbidden | lazy_only:
                wrong.append(str(found))

    assert wrong == []


def test_no_file_is_longer_than_four_hundred_lines():
    files = [*sources(), *HOUSE.rglob("*.lua"), *(ROOT / "tests").rglob("*.py")]
    for tool in ("example_project", "benchmarks", "chaos"):
        files += (ROOT / tool).rglob("*.py")

    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in files}

    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_module_is_named_for_nothing():
    assert [str(path) for path in sources() if path.stem in NAMELESS] == []
    assert [str(path) for path in HOUSE.rglob("*") if path.is_dir() and path.name in NAMELESS] == []


def test_every_lua_script_says_its_keys_arguments_and_answer_first():
    wrong = []
    for path in sorted(HOUSE.rglob("*.lua")):
        lines = path.read_text().splitlines()
        end = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
        header = "\n".join(lines[:end])
        wrong += [f"{path.name}: no {w}" for w in ("KEYS", "ARGV", "Returns") if w not in header]

    assert wrong == []


def test_every_lua_script_is_loaded_by_some_module():
    code = "\n".join(path.read_text() for path in sources())

    unused = [path.name for path in HOUSE.rglob("*.lua") if f'"{path.stem}"' not in code]

    assert unused == []


def test_the_wheel_holds_the_scripts_and_the_mark_of_being_typed(tmp_path):
    wheel = pytest.importorskip("hatchling.builders.wheel")
    builder = wheel.WheelBuilder(str(ROOT))

    [built] = list(builder.build(directory=str(tmp_path)))

    packed = set(zipfile.ZipFile(built).namelist())
    wanted = {str(f.relative_to(ROOT)) for f in [*sources(), *HOUSE.rglob("*.lua")]}
    assert wanted | {"celery_idem/py.typed"} <= packed
    strangers = {name for name in packed if not name.startswith(("celery_idem/", "celery_idem-"))}
    assert strangers == set()
