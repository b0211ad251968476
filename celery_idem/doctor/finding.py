"""What a check is, and what it finds."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_idem.doctor.project import Project


class Severity(IntEnum):
    """How bad it is. ``ERROR``: work is lost or done twice as things are. ``WARNING``: it will be
    when something else goes wrong. ``INFO``: a choice that one should have made on purpose."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """As users type and read it: ``warning``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Place:
    """Lines of a source file, the first one counted as 1."""

    path: str
    line: int
    end_line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: what was found, the sum that shows it, and what to do about it."""

    message: str
    remedy: str  #: a line to paste
    arithmetic: str = ""
    task: str = ""
    setting: str = ""  #: its name, as it is written in the configuration
    value: str = ""
    place: Place | None = None
    severity: Severity | None = None  #: None: the check's own


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of mistake. ``look`` yields what it finds in a project, and raises
    :class:`NotChecked` where it can't tell."""

    id: str
    about: str  #: one line, without a full stop
    severity: Severity
    look: Callable[[Project], Iterable[Finding]]
    asks_servers: bool = False  #: brokers, stores or workers must answer
    reads_source: bool = False  #: files of the project are parsed, which takes a while

    @property
    def explanation(self) -> str:
        """The page of this check, in Markdown: the docstring of its module."""
        return inspect.cleandoc(sys.modules[self.look.__module__].__doc__ or "")


class NotChecked(Exception):
    """The check could not be made: the text says why, and what would let it."""
