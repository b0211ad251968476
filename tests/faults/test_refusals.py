"""Which answers of a server mean "not now": they are tried again, like a lost connection."""

from __future__ import annotations

import pytest
import redis
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from celery_idem.stores.redis.scripts import is_transient
from tests.support.servers import RedisServer

MIDDLE = "local seen = redis.call('GET', KEYS[1]); return redis.call('SET', KEYS[1], seen or 1)"


@pytest.mark.parametrize(
    "error",
    [
        ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
        ResponseError("user_script:22: MISCONF Errors writing to the AOF file: File too large"),
        ResponseError("NOREPLICAS Not enough good replicas to write. script: on @user_script:6."),
        ResponseError("Error running script (call to f_5d): @user_script:9: @user_script: 9: -OOM"),
        ResponseError("BUSY Redis is busy running a script"),
        ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"),
        ReadOnlyError("You can't write against a read only replica."),
        redis.ConnectionError("gone"),
        redis.TimeoutError("late"),
        ConnectionResetError(104, "reset"),
    ],
    ids=str,
)
def test_not_now(error):
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        ResponseError("BUSYGROUP Consumer Group name already exists"),
        ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        ResponseError("user_script:3: Script attempted to access nonexistent global variable"),
        ResponseError("unknown command 'OOMPH'"),
        NoScriptError("No matching script."),
        ValueError("MISCONF"),
    ],
    ids=str,
)
def test_never(error):
    assert not is_transient(error)


@pytest.mark.parametrize("script", ["return redis.call('SET', KEYS[1], 1)", MIDDLE])
def test_a_server_that_refuses_within_a_script_says_not_now(redis_server: RedisServer, script):
    """Found by chaos: a refusal in the middle of a script has the script's line before its word."""
    with redis_server.client() as client:
        client.config_set("min-replicas-to-write", 1)

        with pytest.raises(ResponseError) as refused:
            client.eval(script, 1, "k")

    assert is_transient(refused.value)
