"""One change to one line of a Lua script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

#: the modules that keep the scripts of a room, and the folder of the package where they stand
ROOMS = {
    "store": ("celery_idem.stores.redis.store", "stores/redis"),
    "deadletters": ("celery_idem.deadletters.redis.store", "deadletters/redis"),
    "visibility": ("celery_idem.visibility.ledger", "visibility"),
    "transport": ("celery_idem.transport.scripts", "transport/lua"),
}

#: what is found → what stands there instead; each place on a line is a mutant of its own
SWAPS = (
    (r"==", "~="),
    (r"~=", "=="),
    (r"(?<![<>=~])>=", ">"),
    (r"(?<![<>=~])<=", "<"),
    (r"(?<![<>=~-])>(?!=)", ">="),
    (r"(?<![<>=~])<(?!=)", "<="),
    (r"\band\b", "or"),
    (r"(?<!')\bor\b", "and"),
    (r"\bnot\b", "not not"),
    (r"(?<=[\w)]) \+ (?=[\w(])", " - "),
    (r"(?<=[\w)]) - (?=[\w(])", " + "),
    (r"\bmath\.max\b", "math.min"),
    (r"\bmath\.floor\b", "math.ceil"),
    (r"\bHSETNX\b", "HSET"),
    (r"(?<![\w'.\[])1(?![\w'.\]])", "2"),
    (r"(?<![\w'.\[])0(?![\w'.\]])", "1"),
    (r"\breturn 1\b", "return 0"),
    (r"\breturn 0\b", "return 1"),
)
#: a line of these alone is a statement that may be left out
_STATEMENT = re.compile(
    r"^\s*(redis\.call\(.*\)|(local )?[\w., ]+ = .+|return .+|if .* then .* end|out\[.*\] = .*)$"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """``script`` with this line instead of the one it has."""

    room: str  #: of ``ROOMS``
    script: str
    line: int  #: from 1
    was: str
    now: str  #: empty: the line is left out

    def __str__(self) -> str:
        now = self.now.strip() or "(left out)"
        return f"{self.script}.lua:{self.line}  {self.was.strip()}  →  {now}"

    def source(self) -> bytes:
        """The whole script."""
        lines = source_of(self.room, self.script).split("\n")
        lines[self.line - 1] = self.now
        return "\n".join(lines).encode()


def scripts(room: str) -> list[str]:
    """Names of the room's scripts."""
    folder = Path(str(files("celery_idem"))) / ROOMS[room][1]
    return sorted(path.stem for path in folder.glob("*.lua"))


def source_of(room: str, script: str) -> str:
    """A script as it is."""
    return files("celery_idem").joinpath(f"{ROOMS[room][1]}/{script}.lua").read_text()


def mutants(room: str, script: str) -> Iterator[Mutant]:
    """Every mutant of the script, line by line."""
    for number, line in enumerate(source_of(room, script).split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("--"):
            continue
        seen = {line}
        for now in _changed(line):
            if now not in seen:
                seen.add(now)
                yield Mutant(room, script, number, line, now)


def _changed(line: str) -> Iterator[str]:
    if _STATEMENT.match(line) and line.count("(") == line.count(")"):
        yield ""
    for pattern, instead in SWAPS:
        for found in re.finditer(pattern, line):
            yield line[: found.start()] + instead + line[found.end() :]
