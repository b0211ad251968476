"""Counters of one worker over all its processes: each writes a small mapped file of its own.

A count costs a dictionary look-up and eight bytes of memory, no system call. The main process adds
the files up when somebody asks; what a child counted stays when it has ended.

A file is ``used`` (8 bytes), then entries: length of the key (8 bytes), the key as JSON padded to 8
bytes, the count (8 bytes). ``used`` grows after an entry is whole, so a reader sees no half one.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import shutil
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

#: A counter's name and the values of its labels.
Key = tuple[str, ...]

_NUMBER = struct.Struct("=q")
_WIDTH = _NUMBER.size
#: Bytes of a new file; doubled when they are used up.
FIRST_BYTES = 16 * 1024
PREFIX = "celery-idem-metrics-"
_ENDING = ".counts"


class Counts:
    """Made by the worker's main process before it forks; every child adds to it."""

    def __init__(self, parent: str | None = None) -> None:
        """``parent``: the folder for its own one; default: the system's for temporary files."""
        self.owner = os.getpid()
        root = Path(parent or tempfile.gettempdir())
        _remove_leftovers(root)
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{self.owner}-", dir=root))
        self._ended: Counter[Key] = Counter()
        self._file: _File | None = None
        self._lock = threading.Lock()
        self._adding_up = threading.Lock()
        os.register_at_fork(after_in_child=self._in_child)
        atexit.register(self.close)

    def add(self, *key: str) -> None:
        """Count one."""
        with self._lock:
            if self._file is None:
                self._file = _File(self.directory / f"{os.getpid()}{_ENDING}")
            self._file.add(key)

    def totals(self) -> Counter[Key]:
        """Of all processes, also those that have ended. Only the main process may ask: it takes
        over, and removes, the files of the dead. From any of its threads."""
        with self._adding_up:
            return self._totals()

    def _totals(self) -> Counter[Key]:
        totals: Counter[Key] = Counter()
        for path in list(self.directory.glob(f"*{_ENDING}")):
            counted = Counter(dict(_read(path)))
            if _is_alive(int(path.stem)):
                totals.update(counted)
            else:
                self._ended.update(counted)
                path.unlink()
        totals.update(self._ended)
        return totals

    def close(self) -> None:
        """The worker ends: remove the files. Does nothing in a child."""
        if os.getpid() == self.owner:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _in_child(self) -> None:
        self._lock, self._adding_up, self._file = threading.Lock(), threading.Lock(), None


class _File:
    """The counters of this process."""

    def __init__(self, path: Path) -> None:
        self._handle = open(path, "a+b")  # noqa: SIM115 - mapped as long as the process lives
        self._size = max(os.fstat(self._handle.fileno()).st_size, FIRST_BYTES)
        self._map()
        self._used = max(_number_at(self._memory, 0), _WIDTH)
        self._places = {key: place for key, place, _ in _entries(self._memory, self._used)}

    def add(self, key: Key) -> None:
        place = self._places.get(key)
        if place is None:
            place = self._new(key)
        _NUMBER.pack_into(self._memory, place, _number_at(self._memory, place) + 1)

    def _new(self, key: Key) -> int:
        text = json.dumps(key).encode()
        text += b" " * (-len(text) % _WIDTH)
        entry = _NUMBER.pack(len(text)) + text + _NUMBER.pack(0)
        while self._used + len(entry) > self._size:
            self._size *= 2
            self._map()
        self._memory[self._used : self._used + len(entry)] = entry
        self._used += len(entry)
        _NUMBER.pack_into(self._memory, 0, self._used)
        place = self._places[key] = self._used - _WIDTH
        return place

    def _map(self) -> None:
        self._handle.truncate(self._size)
        self._memory = mmap.mmap(self._handle.fileno(), self._size)


def _read(path: Path) -> Iterator[tuple[Key, int]]:
    data = path.read_bytes()
    if len(data) >= _WIDTH:
        for key, _, count in _entries(data, _number_at(data, 0)):
            yield key, count


def _entries(data: bytes | mmap.mmap, used: int) -> Iterator[tuple[Key, int, int]]:
    """Each key, the place of its count, and the count."""
    at = _WIDTH
    while at < used:
        length = _number_at(data, at)
        place = at + _WIDTH + length
        key = tuple(json.loads(data[at + _WIDTH : place]))
        yield key, place, _number_at(data, place)
        at = place + _WIDTH


def _number_at(data: bytes | mmap.mmap, place: int) -> int:
    number: int = _NUMBER.unpack_from(data, place)[0]
    return number


def _remove_leftovers(root: Path) -> None:
    """Folders of workers that were killed."""
    for path in root.glob(f"{PREFIX}*"):
        owner = path.name[len(PREFIX) :].partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
