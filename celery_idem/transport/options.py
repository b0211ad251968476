"""What the transport's own options may be: a wrong one is an error of the first connection, not of
a worker's hundredth message."""

from __future__ import annotations

import math
from typing import Any

from celery_idem.core.errors import ConfigError
from celery_idem.transport.keys import ALL_STEPS

#: option → the least that it may be
_SECONDS = {"lease_s": 0.001, "block_s": 0.001, "requeue_delay_s": 0, "requeue_delay_max_s": 0}
_WHOLE = {"fetch_limit": 1, "max_deliveries": 0}
_FLAGS = ("delays_in_broker", "accept_lists")
_WORDS = {"unroutable": ("raise", "drop")}


def check_options(channel: Any) -> None:
    """Raises :class:`ConfigError` that names the option, its value and what it may be."""
    for name, least in (_SECONDS | _WHOLE).items():
        value = getattr(channel, name)
        kind = int if name in _WHOLE else float
        if isinstance(value, bool) or not isinstance(value, (int, kind)):
            what = "a whole number" if name in _WHOLE else "a number of seconds"
            raise _wrong(name, f"{what}, not {value!r}")
        if not least <= value < math.inf:
            raise _wrong(name, f"at least {least} and finite, not {value!r}")
    for name in _FLAGS:
        if not isinstance(getattr(channel, name), bool):
            raise _wrong(name, f"True or False, not {getattr(channel, name)!r}")
    for name, words in _WORDS.items():
        if getattr(channel, name) not in words:
            raise _wrong(name, f"one of {', '.join(words)}, not {getattr(channel, name)!r}")
    if not set(map(str, channel.priority_steps)) <= set(ALL_STEPS):
        raise _wrong("priority_steps", f"of 0 to 9, not {channel.priority_steps!r}")


def _wrong(name: str, may_be: str) -> ConfigError:
    return ConfigError(f"broker_transport_options: {name} must be {may_be}")
