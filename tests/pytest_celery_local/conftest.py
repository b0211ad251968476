"""pytest-celery's fixtures, moved from containers to local processes.

These tests run in a pytest of their own, started by tests/test_pytest_celery.py: the plugin
shadows fixtures of Celery's, and is switched off for the rest of the suite. In any other
run they are not collected.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    ours = collection_path.parent == Path(__file__).parent
    return True if ours and not config.pluginmanager.hasplugin("celery") else None


@pytest.fixture
def celery_broker(tmp_path):
    """Instead of one test for each broker that has a container."""
    from pytest_celery import CeleryTestBroker

    yield from _redis_node(CeleryTestBroker, tmp_path / "broker")


@pytest.fixture
def celery_backend(tmp_path):
    from pytest_celery import CeleryTestBackend

    yield from _redis_node(CeleryTestBackend, tmp_path / "backend")


def _redis_node(node_class, folder):
    from tests.pytest_celery_local.local import LocalRedis

    node = node_class(LocalRedis.launch(folder))
    try:
        assert node.ready()
        yield node
    finally:
        node.teardown()


@pytest.fixture
def default_worker_tasks() -> set[ModuleType]:
    from pytest_celery.vendors.worker import tasks as builtin

    from tests.pytest_celery_local import tasks

    return {builtin, tasks}


@pytest.fixture
def default_worker_app(celery_setup_app):
    celery_setup_app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_concurrency=1,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": 5,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
    return celery_setup_app


@pytest.fixture
def default_worker_command(default_worker_container_cls):
    return default_worker_container_cls.command("--without-mingle", "--without-gossip")


@pytest.fixture
def default_worker_cls():
    from tests.pytest_celery_local.local import LocalWorkerNode

    return LocalWorkerNode


@pytest.fixture
def default_worker_container(
    default_worker_command, default_worker_env, default_worker_initial_content, effects, tmp_path
):
    """``effects`` first: the worker inherits the ledger's path."""
    from tests.pytest_celery_local.local import LocalWorker

    worker = LocalWorker.launch(
        default_worker_command,
        default_worker_env,
        default_worker_initial_content,
        tmp_path / "worker",
    )
    try:
        assert worker.ready()
        yield worker
    finally:
        worker.teardown()
