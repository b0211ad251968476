"""Fixtures and house rules of every test. How to use them: tests/support/README.md."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import celery
import pytest
from celery.result import AsyncResult
from hypothesis import HealthCheck, settings

from tests.support import leftovers
from tests.support.apps import apps_forgotten, current_app_kept
from tests.support.clock import ClockSkew, missing_for_clock_skew
from tests.support.effects import ENV as EFFECTS_ENV
from tests.support.effects import Effects
from tests.support.order import longest_first
from tests.support.proxy import FaultProxy
from tests.support.rabbitmq import RabbitBroker, RabbitNode, missing_rabbitmq_node
from tests.support.servers import RedisServer, missing_redis
from tests.support.services import MISSING
from tests.support.workers import Worker

REQUIRE_ALL = os.environ.get("REQUIRE_ALL", "") not in ("", "0")

# how long an example takes is the machine's matter, and no pass mark
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

_mark = pytest.StashKey[str]()
_left = pytest.StashKey[list[str]]()


# -- what a skip means


def not_for_here(item: pytest.Item) -> str | None:
    """Why this test is not meant for this platform, Python or Celery; None when it is."""
    for marker in item.iter_markers("platform"):
        if sys.platform not in marker.args:
            return f"for {', '.join(marker.args)} only"
    for marker in item.iter_markers("python_min"):
        if sys.version_info < marker.args:
            return f"for Python {'.'.join(map(str, marker.args))} and later"
    for marker in item.iter_markers("celery_min"):
        if celery.VERSION[: len(marker.args)] < marker.args:
            return f"for Celery {'.'.join(map(str, marker.args))} and later"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if reason := not_for_here(item):
        pytest.skip(reason)
    for name, missing in MISSING.items():
        if item.get_closest_marker(name) and (reason := missing()):
            pytest.skip(reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with current_app_kept():
        yield


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    if databases := sys.modules.get("tests.django.databases"):
        databases.forget_further()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        if not_for_here(item) is None:
            _make_failure(report)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    outcome: Any = yield
    report: pytest.CollectReport = outcome.get_result()
    if REQUIRE_ALL and report.skipped:
        _make_failure(report)


def _make_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: REQUIRE_ALL is set, and this was skipped: {reason}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # a process of xdist's
        longest_first(items)


# -- no process may outlive the tests


def pytest_configure(config: pytest.Config) -> None:
    # a shell's background job ignores it, and so would all that tests start and interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # a result asks its backend to unsubscribe when it is collected: in whatever test runs then, and
    # without end when the server of its own test is gone
    if hasattr(AsyncResult, "__del__"):  # mutmut begins several sessions in one process
        del AsyncResult.__del__
    config.stash[_mark] = leftovers.mark_session()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if config.getoption("numprocesses", None):
        return  # xdist's controller: each of its workers looks after its own
    _report_leftovers(session, leftovers.end_all(config.stash[_mark]))


def _report_leftovers(session: pytest.Session, left: list[str]) -> None:
    if not left:
        return
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    session.config.stash[_left] = left
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["leftovers"] = left


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(_left, []):
        terminalreporter.write_line(f"LEFT BEHIND by the tests, now killed: {line}", red=True)


class _Controller:
    """Registered where xdist is: hears what its workers found at their end."""

    def pytest_testnodedown(self, node: Any) -> None:
        left = getattr(node, "workeroutput", {}).get("leftovers", [])
        node.config.stash.setdefault(_left, []).extend(left)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.stash.get(_left, []):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    if type(plugin).__name__ == "DSession" and not manager.has_plugin("idem-leftovers"):
        manager.register(_Controller(), "idem-leftovers")


# -- servers


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A private durable server, to be killed, stopped, frozen or filled at will."""
    _need_redis()
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def redis_session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The server behind ``redis_url``, one a session: never kill it."""
    _need_redis()
    with RedisServer(tmp_path_factory.mktemp("redis"), durable=False) as server:
        yield server


@pytest.fixture
def redis_url(redis_session_server: RedisServer) -> str:
    """URL of an empty database on a server that other tests use before and after."""
    with redis_session_server.client() as client:
        client.flushall()
    return redis_session_server.url()


@pytest.fixture
def make_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Factory ``make_redis(name="redis", **options)`` of started private servers."""
    _need_redis()
    servers: list[RedisServer] = []

    def make(name: str = "redis", **options: Any) -> RedisServer:
        server = RedisServer(tmp_path / name, **options)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def rabbitmq() -> Iterator[RabbitBroker]:
    """A vhost (or queue names) of this test's own; mark the test ``rabbitmq``."""
    if reason := MISSING["rabbitmq"]():
        pytest.skip(reason)
    with RabbitBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def make_rabbit_node(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., RabbitNode]]:
    """Factory ``make_rabbit_node(consumer_timeout="3000")`` of started nodes that a module's tests
    share: ten seconds each. Settings are those of the ``rabbit`` application, as Erlang terms."""
    if reason := missing_rabbitmq_node():
        pytest.skip(reason)
    nodes: list[RabbitNode] = []

    def make(**settings: str) -> RabbitNode:
        nodes.append(RabbitNode(tmp_path_factory.mktemp("rabbit"), settings))
        return nodes[-1].start()

    yield make
    for node in nodes:
        node.stop()


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[tuple[str, int]], FaultProxy]]:
    """Factory ``fault_proxy((host, port))`` of started proxies."""
    proxies: list[FaultProxy] = []

    def make(target: tuple[str, int]) -> FaultProxy:
        proxies.append(FaultProxy(target))
        return proxies[-1].start()

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def clock_skew(tmp_path: Path) -> ClockSkew:
    """A clock that can be moved; give ``env=clock_skew.env`` to the process."""
    if reason := missing_for_clock_skew():
        pytest.skip(reason)
    return ClockSkew(tmp_path / "clock")


def _need_redis() -> None:
    if reason := missing_redis():
        pytest.skip(reason)


# -- apps and workers


@pytest.fixture
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Effects:
    """The ledger; workers started in this test find it as ``Effects.from_env()``."""
    ledger = Effects(tmp_path / "effects.jsonl")
    monkeypatch.setenv(EFFECTS_ENV, str(ledger.path))
    return ledger


@pytest.fixture
def load_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Factory ``load_app("tests.apps.plain", TEST_BROKER=url, …)``: a fresh import of the module.

    The variables stay set until the test ends, so workers started later have them too.
    """
    modules: list[ModuleType] = []

    def load(name: str, **env: str) -> ModuleType:
        for variable, value in env.items():
            monkeypatch.setenv(variable, value)
        sys.modules.pop(name, None)
        modules.append(importlib.import_module(name))
        return modules[-1]

    with apps_forgotten():
        yield load
    for module in modules:
        sys.modules.pop(module.__name__, None)
        module.app.close()


# -- databases


@pytest.fixture(scope="session")
def django_databases() -> Iterator[Callable[[str], str]]:
    """``django_databases(alias)``: that database exists and is migrated until the session ends."""
    from tests.django.databases import made

    there: set[str] = set()
    with ExitStack() as stack:

        def need(alias: str) -> str:
            if alias not in there:
                stack.enter_context(made(alias))
                there.add(alias)
            return alias

        yield need


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Factory ``start_worker("tests.apps.plain:app", **Worker's options)`` of ready workers.

    ``wait=False`` returns at once. All workers are killed at the end of the test.
    """
    workers: list[Worker] = []

    def start(app: str, *, wait: bool = True, **options: Any) -> Worker:
        worker = Worker(app, tmp_path / "workers", **options)
        workers.append(worker)
        worker.start()
        return worker.wait_ready() if wait else worker

    yield start
    for worker in workers:
        worker.close()
