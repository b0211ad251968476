"""Where an app's letters go: ``idem["dead_letters"]``, read once and checked whole."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from celery.utils.imports import symbol_by_name

from celery_idem.binding import binding_of
from celery_idem.core.errors import ConfigError
from celery_idem.core.settings import number, text, whole
from celery_idem.core.url import without_password
from celery_idem.deadletters.base import LetterStore
from celery_idem.deadletters.memory import MemoryLetterStore
from celery_idem.deadletters.redis.store import RedisLetterStore
from celery_idem.stores.choose import Surroundings, factory_at, hint_for, redis_url
from celery_idem.stores.redis.connection import is_redis_url

#: Seconds for which an unknown task is put off before it is a letter: a rolling deploy.
DEFAULT_UNKNOWN_TASK_GRACE_S = 300.0
#: Seconds for which a queue is not consumed whose task floods the dead letters.
DEFAULT_FLOOD_PAUSE_S = 300.0
#: Name of the broker queue for ``route="queue"``.
DEFAULT_QUEUE = "dlq"

_ATTRIBUTE = "_celery_idem_letters"
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class LetterSettings:
    """``idem["dead_letters"]``. Every field has a default that is right for most."""

    #: URL, "django", "memory"; None: where the records are
    store: str | None = field(default=None, repr=False)
    route: str = "store"  #: "queue": to a broker queue, for ``collect`` to bring in later
    queue: str = DEFAULT_QUEUE  #: may hold "{lane}"
    unknown_task_grace_s: float = DEFAULT_UNKNOWN_TASK_GRACE_S
    all_tasks: bool = False  #: also letters of tasks that are not idempotent
    expired: bool = False  #: also messages that expired before they ran
    revoked: bool = False  #: also messages whose task was revoked
    redact: Any = None  #: callable (or its path): Letter → Letter, before it is stored
    arguments: str = "repr"  #: how arguments are shown: "repr", "full", "none"
    retention_s: float | None = None  #: delete letters older than this; None: keep them
    max_letters: int | None = None  #: delete the oldest above this number; None: keep them
    flood_per_minute: int | None = None  #: more letters of one task in a minute: the breaker
    flood_pause_s: float = DEFAULT_FLOOD_PAUSE_S  #: its queue is paused so long; 0: only alarm

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> LetterSettings:
        """Read and check. Raises :class:`ConfigError` that names the setting and the remedy."""
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"idem: unknown setting {name!r} in dead_letters; {_nearest(str(name), known)}"
                )
        settings = cls(**given)
        _check(settings)
        return settings


def letter_settings_of(app: Any) -> LetterSettings:
    """The app's settings of its dead letters."""
    return _letters(app).settings


def letters_of(app: Any) -> LetterStore:
    """The app's letter store, opened at the first call.

    Raises :class:`ConfigError` when none can be chosen.
    """
    return _letters(app).store


def use_letters(app: Any, store: LetterStore) -> None:
    """Use this store from now on (tests, and people who build their own)."""
    _letters(app).given = store


def quick_letters_of(app: Any) -> LetterStore:
    """The same letters without patience, for a worker's event loop, which must not wait."""
    return _letters(app).quick


class _Letters:
    def __init__(self, app: Any) -> None:
        self._app = app
        self.given: LetterStore | None = None
        self._quick: LetterStore | None = None
        self._settings: LetterSettings | None = None
        self._store: LetterStore | None = None

    @property
    def settings(self) -> LetterSettings:
        if self._settings is None:
            given = binding_of(self._app).settings.dead_letters
            self._settings = LetterSettings.from_dict(given)
        return self._settings

    @property
    def store(self) -> LetterStore:
        with _lock:
            if self._store is None:
                self._store = self.given or self._open(None)
            return self.given or self._store

    @property
    def quick(self) -> LetterStore:
        with _lock:
            if self._quick is None:
                self._quick = self.given or self._open(0)
            return self.given or self._quick

    def _open(self, patience_s: float | None) -> LetterStore:
        around = binding_of(self._app).surroundings
        if patience_s is None:
            patience_s = around.settings.store_patience_s
        return open_letters(around, self.settings, patience_s)


def _letters(app: Any) -> _Letters:
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    found: _Letters | None = app.__dict__.get(_ATTRIBUTE)
    if found is None:
        with _lock:
            found = app.__dict__.setdefault(_ATTRIBUTE, _Letters(app))
    return found


#: name → "module:function" of a factory ``(Surroundings, LetterSettings, patience_s)``; by name,
#: because its room is below this one.
NAMED: dict[str, str] = {"django": "celery_idem.django.letters:open_letters"}

_memory: dict[str, MemoryLetterStore] = {}


def open_letters(around: Surroundings, settings: LetterSettings, patience_s: float) -> LetterStore:
    """A new store; nothing is connected yet."""
    name = settings.store or _default(around)
    if name == "memory":
        return _memory.setdefault(around.prefix, MemoryLetterStore())
    if is_redis_url(name):
        return RedisLetterStore.from_url(
            name,
            prefix=around.prefix,
            patience_s=patience_s,
            **around.redis_options(name),
        )
    if name in NAMED:
        factory: Callable[..., LetterStore] = factory_at(NAMED[name], name)
        return factory(around, settings, patience_s)
    raise ConfigError(
        f"idem: dead_letters store {without_password(name)!r} is unknown; allowed are a Redis URL, "
        f"'django' and 'memory'{hint_for(name)}"
    )


def _default(around: Surroundings) -> str:
    """Where the records are."""
    named = around.settings.store
    if named == "memory" or (named is not None and is_redis_url(named)):
        return named
    if named == "django" or (named == "tiered" and around.django):
        return "django"
    if around.eager or (around.broker_url or "").startswith("memory"):
        return "memory"
    url = redis_url(around)
    if url is not None:
        return url
    if around.django:
        return "django"
    raise ConfigError(
        "idem: no place for dead letters: neither the broker nor the result backend is a Redis "
        "server, and celery_idem.django is not installed; say where, for example "
        '"store": "redis://localhost:6379/0" in idem["dead_letters"]'
    )


def _check(settings: LetterSettings) -> None:
    text("dead_letters.store", settings.store or None, optional=True)
    number("dead_letters.unknown_task_grace_s", settings.unknown_task_grace_s, least=0)
    number("dead_letters.flood_pause_s", settings.flood_pause_s, least=0)
    number("dead_letters.retention_s", settings.retention_s, least=60, optional=True)
    for name in ("max_letters", "flood_per_minute"):
        if getattr(settings, name) is not None:
            whole(f"dead_letters.{name}", getattr(settings, name), least=1)
    _one_of("route", settings.route, ("store", "queue"))
    _one_of("arguments", settings.arguments, ("repr", "full", "none"))
    for name in ("all_tasks", "expired", "revoked"):
        if not isinstance(getattr(settings, name), bool):
            raise ConfigError(
                f"idem: dead_letters.{name} must be True or False, not {getattr(settings, name)!r}"
            )
    if settings.redact is not None and not callable(redactor(settings)):
        raise ConfigError(
            f"idem: dead_letters.redact must be a callable or the path of one, not "
            f"{settings.redact!r}"
        )


def redactor(settings: LetterSettings) -> Callable[[Any], Any] | None:
    """The ``redact`` hook, looked up where it is a path."""
    given: Any = settings.redact
    if not isinstance(given, str):
        return cast("Callable[[Any], Any] | None", given)
    try:
        found: Callable[[Any], Any] = symbol_by_name(given)
    except Exception as error:
        raise ConfigError(
            f"idem: dead_letters.redact {settings.redact!r} can't be loaded: {error}"
        ) from error
    return found


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"idem: dead_letters.{name} must be one of {', '.join(allowed)}, not {value!r}"
        )


def _nearest(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
