"""``idem["metrics"]``, read once and checked whole."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from celery_idem.core.errors import ConfigError
from celery_idem.core.settings import number, whole

#: Address on which the port listens: this machine only.
DEFAULT_ADDRESS = "127.0.0.1"
#: Seconds between two writings of the text file.
DEFAULT_EVERY_S = 15.0
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """``port`` or ``textfile``, or both; with neither, nothing is counted."""

    port: int | None = None  #: HTTP, at /metrics; 0: any free one, which the log names
    address: str = DEFAULT_ADDRESS
    textfile: str | None = None  #: path for node_exporter; "{hostname}" is the worker's name
    every_s: float = DEFAULT_EVERY_S  #: how often the text file is written

    @property
    def wanted(self) -> bool:
        """Whether anybody will read the numbers."""
        return self.port is not None or self.textfile is not None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> MetricsSettings:
        """Read and check. Raises :class:`ConfigError` that names the setting and the remedy.

        >>> MetricsSettings.from_dict({"prot": 9808})
        Traceback (most recent call last):
        ...
        celery_idem.core.errors.ConfigError: idem: unknown setting 'prot' in metrics; did you mean \
'port'?
        """
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"idem: unknown setting {name!r} in metrics; {_nearest(name, known)}"
                )
        settings = cls(**given)
        _check(settings)
        return settings


def _check(settings: MetricsSettings) -> None:
    if settings.port is not None:
        whole("metrics.port", settings.port, least=0)
        if settings.port > MAX_PORT:
            raise ConfigError(f"idem: metrics.port must be at most {MAX_PORT}, not {settings.port}")
    number("metrics.every_s", settings.every_s, least=1)
    for name in ("address", "textfile"):
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"idem: metrics.{name} must be a non-empty text, not {value!r}")


def _nearest(name: object, known: set[str]) -> str:
    near = difflib.get_close_matches(str(name), sorted(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
