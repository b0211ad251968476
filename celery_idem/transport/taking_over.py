"""What sessions held that are dead, or end, goes back to its lanes; a session that has no lease is
as dead as one whose lease is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from celery_idem.transport import scripts
from celery_idem.transport.keys import Keys

logger = logging.getLogger("celery_idem.transport")

#: Messages that one call of the sweep takes over, so that a call stays below some milliseconds.
SWEEP_BATCH = 200
#: How often it is said that something of a lane can't be taken over, in seconds.
COMPLAIN_EVERY_S = 60.0

_complained_at: dict[bytes, float] = {}


def audit(client: Any, keys: Keys, lanes: Iterable[str]) -> None:
    """Find what is held under no lease: a failover or a restore may have lost the lease."""
    for lane in lanes:
        names = [keys.leases, keys.dying, lane]
        if found := scripts.AUDIT(client, names, [keys.session_prefix]):
            logger.warning("%d sessions had no lease and are taken over", found)


class Swept(NamedTuple):
    """What a call of the sweep tells its caller."""

    more: bool  #: there is more to do now
    stuck: bool  #: of some lane something can't be taken over


def sweep(client: Any, keys: Keys, *, end: str = "") -> Swept:
    """Take over what dead sessions held, and the one that is to ``end``."""
    moved, more, *rest = scripts.SWEEP(
        client, [keys.leases, keys.dying], [keys.session_prefix, SWEEP_BATCH, end]
    )
    for item in rest:
        if isinstance(item, bytes):
            logger.warning("took over from a dead worker", extra={"session": item.decode()})
        else:
            _complain(*item)
    if moved and not end:
        logger.info("%d messages were taken over", moved)
    return Swept(bool(more), any(not isinstance(item, bytes) for item in rest))


def _complain(lane: bytes, why: bytes) -> None:
    if time.monotonic() - _complained_at.get(lane, -COMPLAIN_EVERY_S) < COMPLAIN_EVERY_S:
        return
    _complained_at[lane] = time.monotonic()
    logger.error(
        "what a dead worker held can't be taken over, and is tried again: %s",
        why.decode(),
        extra={"lane": lane.decode()},
    )
