"""Redis Cluster: all keys of a broker must be in one slot, and the URL must name its node.

A fetch looks at several queues in one script, and kombu has no cluster client. What the server
answers then (CROSSSLOT, MOVED) tells nobody what to do: here it is said.
"""

from __future__ import annotations

import re
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from celery_idem.core.errors import ConfigError
from celery_idem.transport.keys import Keys

_TAG = re.compile(r"\{[^{}]+\}")


def has_tag(prefix: str) -> bool:
    """Whether all keys that begin with this are in one slot."""
    return _TAG.search(prefix) is not None


def require_one_slot(client: Any, keys: Keys) -> None:
    """Raise :class:`ConfigError` where a server is part of a cluster and can't hold all keys.

    Quiet where the server does not say what it is.
    """
    try:
        mode = client.info("server").get("redis_mode", client.info("server").get("server_mode"))
        if mode != "cluster":
            return
        if not has_tag(keys.prefix):
            raise ConfigError(_many_slots(keys.prefix))
        client.exists(keys.leases)  # asks for the slot itself: another node answers MOVED
    except NoPermissionError:
        return  # a user without INFO, as managed servers have: what comes next meets it too
    except ResponseError as error:
        raise explained(error, keys.prefix) from error
    except RedisError:
        return  # what comes next meets it too


def explained(error: ResponseError, prefix: str) -> Exception:
    """The cluster's refusal as a sentence; any other error as it is."""
    said = str(error)
    if "CROSSSLOT" in said or "keys in request don't hash to the same slot" in said:
        return ConfigError(_many_slots(prefix))
    moved = type(error).__name__ == "MovedError" or said.startswith("MOVED")
    if moved and not has_tag(prefix):
        return ConfigError(_many_slots(prefix))
    if moved:
        owner = getattr(error, "node_addr", None)
        where = f"{owner[0]}:{owner[1]}" if owner else said.rpartition(" ")[2]
        return ConfigError(
            f"this node of the cluster does not have the keys of {prefix!r}: "
            f"the broker's URL must name {where}"
        )
    return error


def _many_slots(prefix: str) -> str:
    return (
        f"the server is part of a Redis Cluster, and keys that begin with {prefix!r} are in many "
        "slots; a fetch takes from several queues at once, which needs all of them in one: set the "
        "transport option global_keyprefix to a hash tag, such as '{shop}:'"
    )
