"""One setting, ``app.conf.idem`` (``CELERY_IDEM`` in Django): a dict, read once, checked whole."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from celery_idem.core.errors import ConfigError
from celery_idem.core.url import without_password

#: Seconds that a claim's lease lasts unless a task says otherwise; renewed at a third of it.
DEFAULT_LEASE_S = 30.0
#: Crashes of one key before it is poison.
DEFAULT_MAX_CRASHES = 3
#: Bytes of a serialised result that are kept inside the record.
DEFAULT_MAX_RESULT_BYTES = 64 * 1024
#: Seconds that a worker keeps trying a store that can't be reached, before the message goes back.
DEFAULT_STORE_PATIENCE_S = 60.0
#: Times that ``Reject(requeue=True)`` is honoured for one message before it is a failure.
DEFAULT_MAX_REQUEUES = 20
#: Seconds for which a revoked key stays so, unless told otherwise: 30 days.
DEFAULT_REVOKE_S = 30 * 86400.0

LANE_ORDERS = ("weighted", "strict", "deadline")
CHARGES = ("messages", "seconds")


@dataclass(frozen=True, slots=True)
class Settings:
    """Every field has a default that is right for most. Seconds and bytes unless it says else."""

    #: URL, "django", "tiered", "memory"; None: broker's or backend's
    store: str | None = field(default=None, repr=False)  # its password is in no repr
    lease_s: float = DEFAULT_LEASE_S
    retention_s: float | None = None  #: None: max(24 h, twice the task's retry window)
    max_crashes: int = DEFAULT_MAX_CRASHES
    max_lease_s: float | None = None  #: stop renewing a body that hangs; None: its hard time limit
    visibility_keeper: bool = True
    lanes: Mapping[str, Any] = field(default_factory=dict)
    lane_order: str = "weighted"
    charge: str = "messages"
    dead_letters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    max_result_bytes: int = DEFAULT_MAX_RESULT_BYTES
    prefix: str = "idem"
    hash_keys: bool = False
    store_patience_s: float = DEFAULT_STORE_PATIENCE_S
    max_requeues: int = DEFAULT_MAX_REQUEUES
    metrics: Mapping[str, Any] = field(default_factory=dict)  #: docs/metrics.md; {}: none

    @classmethod
    def from_dict(cls, given: Mapping[str, Any] | None) -> Settings:
        """Read and check the dict. Raises :class:`ConfigError` that names the key and the remedy.

        >>> Settings.from_dict({"lease": 10})
        Traceback (most recent call last):
        ...
        celery_idem.core.errors.ConfigError: idem: unknown setting 'lease'; did you mean 'lease_s'?
        """
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise ConfigError(f"idem: must be a dict of settings, not {type(given).__name__}")
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(f"idem: unknown setting {name!r}; {_nearest(name, known)}")
        settings = cls(**given)
        _check(settings)
        return settings


def _nearest(name: object, known: set[str]) -> str:
    near = difflib.get_close_matches(str(name).lower(), sorted(known), n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(sorted(known))}"


def _check(settings: Settings) -> None:
    number("lease_s", settings.lease_s, least=0.1)
    number("retention_s", settings.retention_s, least=1, optional=True)
    number("max_lease_s", settings.max_lease_s, least=0.1, optional=True)
    number("store_patience_s", settings.store_patience_s, least=0)
    whole("max_crashes", settings.max_crashes, least=1)
    whole("max_result_bytes", settings.max_result_bytes, least=0)
    whole("max_requeues", settings.max_requeues, least=1)
    _flag("visibility_keeper", settings.visibility_keeper)
    _flag("hash_keys", settings.hash_keys)
    text("store", settings.store, optional=True)
    text("prefix", settings.prefix)
    if "{" in settings.prefix or "}" in settings.prefix:
        raise ConfigError(
            f"idem: prefix {settings.prefix!r} holds a brace, which Redis Cluster reads as a "
            "hash tag; use letters, digits, ':' and '-'"
        )
    _one_of("lane_order", settings.lane_order, LANE_ORDERS)
    _one_of("charge", settings.charge, CHARGES)
    for name in ("lanes", "dead_letters", "metrics"):
        value = getattr(settings, name)
        if not isinstance(value, Mapping):
            raise ConfigError(f"idem: {name} must be a dict, not {type(value).__name__}")


def number(name: str, value: object, *, least: float, optional: bool = False) -> None:
    """Check a number of seconds; raises :class:`ConfigError` with the value and the bound."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"idem: {name} must be a number, not {value!r}")
    if not least <= value < math.inf:
        raise ConfigError(f"idem: {name} must be at least {least} and finite, not {value!r}")


def whole(name: str, value: object, *, least: int) -> None:
    """Check a whole number; raises :class:`ConfigError` with the value and the bound."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"idem: {name} must be a whole number, not {value!r}")
    if value < least:
        raise ConfigError(f"idem: {name} must be at least {least}, not {value!r}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"idem: {name} must be True or False, not {value!r}")


def text(name: str, value: object, *, optional: bool = False) -> None:
    """Check a text; raises :class:`ConfigError` with the value, but for passwords in it."""
    if value is None and optional:
        return
    if not isinstance(value, str) or not value:
        raise ConfigError(f"idem: {name} must be a non-empty text, not {_shown(value)}")


def _shown(value: object) -> str:
    """Several brokers are a list, and a store is not; what is in a dict nobody knows."""
    if isinstance(value, Mapping):
        return f"a {type(value).__name__}"
    return without_password(repr(value))


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"idem: {name} must be one of {', '.join(allowed)}, not {value!r}")
