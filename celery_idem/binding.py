"""What one Celery app uses in this process: its settings, its store, its lease keeper."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_idem.core.errors import ConfigError
from celery_idem.core.settings import Settings
from celery_idem.lease import LeaseKeeper
from celery_idem.run_times import RunTimes
from celery_idem.stores.base import Store
from celery_idem.stores.choose import Surroundings, open_store

_ATTRIBUTE = "_celery_idem_binding"
_lock = threading.RLock()


class Binding:
    """Made once per app and process; stores and threads are opened at their first use."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._settings: Settings | None = None
        self._store: Store | None = None
        self._given_store: Store | None = None
        self._keeper: LeaseKeeper | None = None
        self.run_times = RunTimes()

    @property
    def settings(self) -> Settings:
        """``app.conf.idem``, read once."""
        if self._settings is None:
            self._settings = Settings.from_dict(_given(self._app))
        return self._settings

    @property
    def store(self) -> Store:
        """The app's store, with the app's patience."""
        if self._store is None:
            with _lock:
                if self._store is None:
                    self._store = open_store(self.surroundings)
        return self._store

    @property
    def keeper(self) -> LeaseKeeper:
        """The process's lease keeper for this app."""
        if self._keeper is None:
            with _lock:
                if self._keeper is None:
                    self._keeper = LeaseKeeper(self._keepers_store)
        return self._keeper

    @property
    def surroundings(self) -> Surroundings:
        """What the choice of a store depends on."""
        conf, settings = self._app.conf, self.settings
        _make_django_ready()
        return Surroundings(
            settings=settings,
            broker_url=in_one(conf.broker_read_url or conf.broker_url),
            backend_url=conf.result_backend if isinstance(conf.result_backend, str) else None,
            transport_options={
                **(conf.result_backend_transport_options or {}),
                **(conf.broker_transport_options or {}),
            },
            broker_ssl=conf.broker_use_ssl,
            backend_ssl=conf.redis_backend_use_ssl,
            eager=bool(conf.task_always_eager),
            django=_django_has_us(),
        )

    def use(self, store: Store) -> None:
        """Use this store from now on (tests, and people who build their own)."""
        self._store = self._given_store = store

    def _keepers_store(self) -> Store:
        return self._given_store or open_store(self.surroundings, 0)


def binding_of(app: Any) -> Binding:
    """The app's binding, the same object every time."""
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    found: Binding | None = app.__dict__.get(_ATTRIBUTE)
    if found is None:
        with _lock:
            found = app.__dict__.setdefault(_ATTRIBUTE, Binding(app))
    return found


def settings_of(app: Any) -> Settings:
    """``app.conf.idem`` as :class:`Settings`. Raises :class:`ConfigError` for a bad one."""
    return binding_of(app).settings


def store_of(app: Any) -> Store:
    """The store that the app's tasks use."""
    return binding_of(app).store


def in_one(url: Any) -> str | None:
    """Celery takes several brokers as a list, or as a text with semicolons."""
    return ";".join(url) if isinstance(url, (list, tuple)) else url


def _given(app: Celery) -> Mapping[str, Any] | None:
    # ``config_from_object("django.conf:settings", namespace="CELERY")`` makes CELERY_IDEM "idem".
    given = app.conf.get("idem")
    if given is None and _django_is_configured():
        from django.conf import settings

        given = getattr(settings, "CELERY_IDEM", None)
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"idem: must be a dict of settings, not {type(given).__name__}")
    return given


def _django_is_configured() -> bool:
    conf = sys.modules.get("django.conf")
    return conf is not None and bool(conf.settings.configured)


def _make_django_ready() -> None:
    """Celery makes a project's Django ready in a worker; a command or a script that looks at keys
    or letters comes without."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE") or not _django_is_configured():
        return
    import django
    from django.apps import apps

    if not apps.ready and not apps.loading:
        django.setup()


def _django_has_us() -> bool:
    apps = sys.modules.get("django.apps")
    return apps is not None and bool(
        apps.apps.ready and apps.apps.is_installed("celery_idem.django")
    )
