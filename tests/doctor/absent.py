"""Packages that the sample of foreign tasks imports and that are not installed here.

The doctor reads source; to load the tasks their modules must be importable, and no more than that.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = (
    "boto3", "httpx", "requests", "requests.adapters", "slack_sdk", "sqlalchemy", "statsd",
    "pydantic", "stripe", "twilio", "twilio.rest", "sendgrid", "aiohttp", "pika", "kafka",
)  # fmt: skip


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Anything(Exception, metaclass=_Anything):
    """Whatever is asked of it is one more of it."""

    @staticmethod
    def of(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __getattr__(self, name: str) -> Any:
        return self.of(name)


def _is_installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


@contextmanager
def stand_ins() -> Iterator[None]:
    """Let every absent one of these packages be importable."""
    absent = [name for name in NAMES if not _is_installed(name.partition(".")[0])]
    for name in absent:
        module = types.ModuleType(name)
        module.__path__ = []
        module.__getattr__ = Anything.of  # type: ignore[method-assign]
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
