"""Celery's own memory of apps: kept from growing from test to test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import _state


@contextmanager
def current_app_kept() -> Iterator[None]:
    """Which app is the current one, and the default one, is after the block what it was before:
    Celery makes every new app the current one, and under Django also the default."""
    state: Any = _state
    current, default = state._tls.current_app, state.default_app
    try:
        yield
    finally:
        state._set_current_app(current)
        state.set_default_app(default)


@contextmanager
def apps_forgotten() -> Iterator[None]:
    """What is loaded inside the block is not the current app after it, and its tasks are not
    registered with apps that come later."""
    state: Any = _state
    finalizers = set(state._on_app_finalizers)
    with current_app_kept():
        try:
            yield
        finally:
            state._on_app_finalizers.intersection_update(finalizers)


@contextmanager
def no_shared_tasks() -> Iterator[None]:
    """Apps made inside the block have no ``shared_task`` of modules that other tests imported, and
    are forgotten like those of :func:`apps_forgotten`."""
    state: Any = _state
    shared = set(state._on_app_finalizers)
    own = {make for make in shared if make.__module__ == "celery.app.builtins"}
    try:
        with apps_forgotten():
            state._on_app_finalizers.intersection_update(own)
            yield
    finally:
        state._on_app_finalizers.update(shared)
