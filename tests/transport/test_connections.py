"""The forms of the URL: TCP, Unix socket, TLS options, Sentinel with a failover."""

from __future__ import annotations

import contextlib

import pytest
import redis
from kombu import Connection

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import end_group, spawn
from tests.support.servers import find_redis_binary
from tests.support.waiting import wait_until
from tests.transport.conftest import APP, streams


def round_trip(url, **options) -> None:
    with Connection(url, transport_options=options) as connection:
        queue = connection.SimpleQueue("q")
        queue.put("hello")
        message = queue.get(timeout=10)
        assert message.payload == "hello"
        message.ack()


def test_a_unix_socket(redis_server):
    url = redis_server.socket_url(3)

    round_trip(streams(url))

    with redis_server.client(3) as client:
        assert client.exists("rs:{q}:0")


def test_a_database_of_its_own(redis_server):
    round_trip(streams(redis_server.url(5)))

    with redis_server.client(5) as client:
        assert client.exists("rs:{q}:0")
    with redis_server.client(0) as client:
        assert not client.exists("rs:{q}:0")


def test_tls_checks_certificates_unless_told_otherwise():
    import ssl

    default = Connection("rediss-streams://localhost:6379/0").transport.client.ssl
    chosen = Connection("rediss-streams://localhost:6379/0?ssl_cert_reqs=none").transport.client.ssl

    assert default == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    assert chosen == {"ssl_cert_reqs": ssl.CERT_NONE}
    said_twice = Connection("rediss-streams://localhost:6379/0", ssl=True).transport.client.ssl
    assert said_twice == default


@pytest.fixture
def sentinel(make_redis, tmp_path):
    """A master, its replica, and a Sentinel; yields (url, options, master, client of Sentinel)."""
    master = make_redis("master")
    replica = make_redis("replica", extra=["--replicaof", LOOPBACK, str(master.port)])
    with replica.client() as client:
        wait_until(lambda: client.info()["master_link_status"] == "up", what="the replication")
    port = free_port()
    folder = tmp_path / "sentinel"
    folder.mkdir()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind {LOOPBACK}\ndir {folder}\n"
        f"sentinel monitor main {LOOPBACK} {master.port} 1\n"
        "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n"
    )
    process = spawn([find_redis_binary(), str(config), "--sentinel"], folder / "log", cwd=folder)
    try:
        with redis.Redis(LOOPBACK, port) as client:

            def knows() -> bool:
                with contextlib.suppress(redis.RedisError):
                    return bool(client.sentinel_slaves("main"))
                return False

            wait_until(knows, what="a Sentinel that knows the replica")
            url = f"sentinel-streams://{LOOPBACK}:{port}/0"
            yield url, {"master_name": "main"}, master, client
    finally:
        end_group(process)


def test_the_master_that_sentinels_name(sentinel):
    url, options, _, _ = sentinel

    round_trip(url, **options)


@pytest.mark.slow
def test_a_worker_survives_a_failover(
    sentinel, load_streams_app, effects, start_worker, redis_server
):
    """C64"""
    url, options, master, watcher = sentinel
    app = load_streams_app(options=options, broker=url)
    worker = start_worker(f"{APP}:app", concurrency=2)
    app.effect.delay("before")
    effects.wait_count("before", 1)
    app.slow.delay("through", 6)
    effects.wait_count("through:start", 1)
    old = watcher.sentinel_get_master_addr_by_name("main")

    master.kill()
    wait_until(lambda: watcher.sentinel_get_master_addr_by_name("main") != old, 60, "a failover")

    def sent() -> bool:
        with contextlib.suppress(Exception):
            app.effect.apply_async(("after",), retry=False)
            return True
        return False

    wait_until(sent, 60, "a master that takes messages")
    effects.wait_count("after", 1, 60)
    effects.wait_count("through:end", 1, 60)
    assert worker.returncode is None


def test_one_node_of_a_cluster_with_all_keys_in_one_slot(
    make_redis, load_streams_app, effects, start_worker
):
    """C69: no script and no transaction touches a second slot."""
    node = make_redis("node", extra=["--cluster-enabled", "yes"])
    with node.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        wait_until(lambda: _cluster_state(client) == "ok", what="the cluster")
    options = {"global_keyprefix": "{shop}:"}
    app = load_streams_app(options=options, broker=streams(node.url()), backend=node.url())
    worker = start_worker(f"{APP}:app", concurrency=2)

    app.effect.delay("now")
    app.effect.apply_async(("later",), countdown=0.5)
    app.effect.apply_async(("urgent",), priority=9)
    app.rejecting.delay("again", 1)

    effects.wait_for(lambda it: all(it.count(k) for k in ("now", "later", "urgent", "again")))
    worker.term()
    assert worker.wait_exit() == 0


def _cluster_state(client: redis.Redis) -> object:
    return client.execute_command("CLUSTER INFO").get("cluster_state")


def test_a_user_without_dangerous_commands_and_a_password_of_odd_letters(
    load_streams_app, effects, start_worker, redis_server
):
    """Managed servers give no other user; INFO is among what it may not say."""
    with redis_server.client() as client:
        client.acl_setuser(
            "shop", enabled=True, passwords="+p@ss:/w#rd%", keys="*", channels="*",
            categories=["+@all", "-@dangerous"],
        )  # fmt: skip
    host, port = redis_server.address
    url = f"redis-streams://shop:p%40ss%3A%2Fw%23rd%25@{host}:{port}/0"
    app = load_streams_app(broker=url)
    doomed = start_worker(f"{APP}:app")
    app.slow.delay("taken over", 0.5)
    effects.wait_count("taken over:start", 1)

    doomed.kill_tree()
    worker = start_worker(f"{APP}:app", concurrency=2)
    app.effect.apply_async(("later",), countdown=0.5)

    effects.wait_count("taken over:end", 1)
    effects.wait_count("later", 1)
    assert worker.returncode is None
