"""``redis-streams://``: a broker on Redis that loses nothing, as a plain kombu transport.

Importing this package (or calling :func:`register`) makes the URLs known to kombu::

    import celery_idem.transport            # in the module that makes the app
    app = Celery("shop", broker="redis-streams://localhost:6379/0")

It works for every Celery app, with or without ``IdempotentTask``.
"""

from __future__ import annotations

from typing import Any

from celery import signals
from kombu.transport import TRANSPORT_ALIASES

#: scheme of a broker URL → the class behind it. ``redis-streams+socket:///path`` is the first.
SCHEMES = {
    "redis-streams": "celery_idem.transport.transport:Transport",
    "rediss-streams": "celery_idem.transport.transport:SSLTransport",
    "sentinel-streams": "celery_idem.transport.transport:SentinelTransport",
}


def register() -> None:
    """Make the schemes known to kombu. Cheap, and safe to call again."""
    TRANSPORT_ALIASES.update(SCHEMES)
    signals.worker_init.connect(_on_worker, weak=False, dispatch_uid="celery_idem.transport")


def _on_worker(sender: Any = None, **_: Any) -> None:
    from celery_idem.transport.noted import NotedAcks
    from celery_idem.unreported import EveryEnd

    sender.app.steps["worker"].add(EveryEnd)
    sender.app.steps["consumer"].add(NotedAcks)


register()
