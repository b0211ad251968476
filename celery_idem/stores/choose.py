"""Which store an app uses: the one that ``idem["store"]`` names, else its broker's or backend's."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_idem.core.errors import ConfigError
from celery_idem.core.settings import Settings
from celery_idem.core.url import server_of, without_password
from celery_idem.stores.base import Store
from celery_idem.stores.memory import MemoryStore
from celery_idem.stores.redis import tls
from celery_idem.stores.redis.connection import is_redis_url
from celery_idem.stores.redis.store import RedisStore

#: What this package's transport adds to a scheme: in several URLs, and nowhere else in them.
_STREAMS = re.compile(r"((?:^|;)(?:rediss?|sentinel))-streams(?=\+|://)")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of an app matters for the choice."""

    settings: Settings
    # what holds passwords is in no repr: trackers of errors show locals
    broker_url: str | None = field(default=None, repr=False)
    backend_url: str | None = field(default=None, repr=False)
    transport_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    broker_ssl: Any = None  #: ``broker_use_ssl``
    backend_ssl: Any = None  #: ``redis_backend_use_ssl``
    eager: bool = False  #: ``task_always_eager``
    django: bool = False  #: ``celery_idem.django`` is installed

    @property
    def prefix(self) -> str:
        """What names begin with: ``idem["prefix"]``, and before it ``global_keyprefix``, by which
        two apps on one database keep their messages apart. Without braces, which would put all keys
        into one slot of a cluster."""
        given = str(self.transport_options.get("global_keyprefix") or "")
        return given.replace("{", "").replace("}", "") + self.settings.prefix

    def redis_options(self, url: str) -> dict[str, Any]:
        """What the app has set for connections to this server: Sentinel's master, and TLS where
        it is the broker's or the backend's own server."""
        options = {
            name: self.transport_options[name]
            for name in ("master_name", "sentinel_kwargs")
            if name in self.transport_options
        }
        for own, use_ssl in (
            (self.broker_url, self.broker_ssl),
            (self.backend_url, self.backend_ssl),
        ):
            if own and server_of(own) == server_of(url) and use_ssl:
                return {**options, **tls.options_of(use_ssl)}
        return options


#: name → "module:function" of a factory ``(Surroundings, patience_s) -> Store``; looked up by name,
#: because their rooms are below this one.
NAMED: dict[str, str] = {
    "django": "celery_idem.django.store:open_store",
    "tiered": "celery_idem.stores.tiered:open_store",
}


def open_store(around: Surroundings, patience_s: float | None = None) -> Store:
    """A new store with connections of its own. Nothing is connected yet.

    Raises :class:`ConfigError` when no store can be chosen, or the chosen one is unknown.
    """
    settings = around.settings
    patience = settings.store_patience_s if patience_s is None else patience_s
    name = settings.store or _default(around)
    if name == "memory":
        return shared_memory_store(around.prefix)
    if is_redis_url(name):
        return redis_store(name, around, patience)
    if name in NAMED:
        return named_store(name, around, patience)
    raise ConfigError(
        f"idem: store {without_password(name)!r} is unknown; allowed are a Redis URL, "
        f"{', '.join(map(repr, NAMED))} and 'memory'{hint_for(name)}"
    )


def hint_for(url: str) -> str:
    """What to add to the refusal of a broker's URL."""
    streams = url.startswith(("redis-streams://", "rediss-streams://"))
    return "; a broker's server at redis-streams://… is redis://… for a store" if streams else ""


def named_store(name: str, around: Surroundings, patience_s: float) -> Store:
    """A new store of those in :data:`NAMED`."""
    factory: Callable[[Surroundings, float], Store] = factory_at(NAMED[name], name)
    return factory(around, patience_s)


def factory_at(place: str, name: str) -> Any:
    """What stands at "module:function", the factory of this store.

    Raises :class:`ConfigError` where Django is missing, not set up, or does not have our app: its
    models can't be imported then.
    """
    module, _, function = place.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except Exception as error:
        said = str(error).partition(". ")[0]
        raise ConfigError(
            f"idem: store {name!r} needs Django with 'celery_idem.django' in INSTALLED_APPS, and "
            f"DJANGO_SETTINGS_MODULE set ({type(error).__name__}: {said})"
        ) from error


def redis_url(around: Surroundings) -> str | None:
    """The Redis server that the app already uses: the broker's, else the backend's.

    ``redis-streams://…`` (the transport of this package) is the server at ``redis://…``.
    """
    for url in (around.broker_url, around.backend_url):
        plain = _STREAMS.sub(r"\1", url or "")
        if is_redis_url(plain):
            return plain
    return None


def redis_store(url: str, around: Surroundings, patience_s: float) -> RedisStore:
    """A Redis store at the URL, with the options that the app has for this server."""
    return RedisStore.from_url(
        url,
        prefix=around.prefix,
        hash_keys=around.settings.hash_keys,
        patience_s=patience_s,
        **around.redis_options(url),
    )


_memory_stores: dict[str, MemoryStore] = {}


def shared_memory_store(prefix: str) -> MemoryStore:
    """One memory store per prefix and process, so that a worker's threads see one truth."""
    return _memory_stores.setdefault(prefix, MemoryStore())


def _default(around: Surroundings) -> str:
    if around.eager or (around.broker_url or "").startswith("memory"):
        return "memory"
    url = redis_url(around)
    if url is not None:
        return url
    if around.django:
        return "django"
    raise ConfigError(
        "idem: neither the broker nor the result backend is a Redis server, and "
        "celery_idem.django is not installed: say where records are kept, for example "
        '"store": "redis://localhost:6379/0" in app.conf.idem'
    )
