"""No password is shown, whatever it is made of and however many URLs there are."""

from __future__ import annotations

import doctest

import pytest

from celery_idem.core import url as module
from celery_idem.core.url import why_unreadable, without_password
from celery_idem.stores.redis.connection import is_redis_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:s3cret@h:6379/0", "redis://:***@h:6379/0"),
        ("redis://me:s3cret@h", "redis://me:***@h"),
        ("redis://:s3@cret@h", "redis://:***@h"),
        ("amqp://u:s3:cret@h//", "amqp://u:***@h//"),
        ("amqp://u:s3/cret@h//", "amqp://u:***@h//"),
        ("amqp://u:s3@a/cret@h//", "amqp://u:***@h//"),
        ("amqp://u:s3?cret@h//", "amqp://u:***@h//"),
        ("amqp://u:s3?cret=1@h//", "amqp://u:***@h//"),
        ("amqp://u:s3#cret@h//", "amqp://u:***@h//"),
        ("postgresql://u:s3;cret@h/db", "postgresql://u:***@h/db"),
        ("sqs://AKIA:s3/cret+@", "sqs://AKIA:***@"),
        ("redis+socket://:s3cret@/tmp/r.sock", "redis+socket://:***@/tmp/r.sock"),
        ("redis://h:6379/0?password=s3cret&db=2", "redis://h:6379/0?password=***&db=2"),
        ("redis://h?db=2&PASSWORD=s3@cret", "redis://h?db=2&PASSWORD=***"),
        ("redis://h?ssl_password=s3cret", "redis://h?ssl_password=***"),
        ('sentinel://h?sentinel_kwargs={"password": "s3cret"}', "sentinel://h?sentinel_kwargs=***"),
        ("sqs://?aws_secret_access_key=s3cret", "sqs://?aws_secret_access_key=***"),
        ("amqp://u:s3cret@a;amqp://v:s3cret2@b", "amqp://u:***@a;amqp://v:***@b"),
        ("redis://a?password=s3cret;redis://:s3cret@b", "redis://a?password=***;redis://:***@b"),
        ("sentinel://:s3cret@a:26379;b:26379", "sentinel://:***@a:26379;b:26379"),
        ("sentinel://:s3cret@a:26379;:s3cret@b:26379", "sentinel://:***@b:26379"),
        ("['redis://:s3@cret@a', 'redis://:s3cret@b']", "['redis://:***@a', 'redis://:***@b']"),
    ],
)
def test_a_password_is_shown_nowhere_and_what_is_none_is(url, shown):
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:6379/0",
        "redis://",
        "memory://",
        "django",
        "redis://me@h",
        "redis://h:6379/0?ssl_cert_reqs=CERT_NONE&client_name=me@here",
        "unix:///tmp/redis.sock?virtual_host=3",
        "sentinel://a:26379;sentinel://b:26379/0",
    ],
)
def test_a_url_without_a_password_is_shown_as_it_is(url):
    assert without_password(url) == url


def test_the_reason_cites_no_part_of_a_password():
    error = ValueError("Port could not be cast to integer value as 's3'")

    assert "%2F" in why_unreadable("redis://:s3/cret@h", error)
    assert "%2F" in why_unreadable("redis://:p@x:s3/cret@h", error)
    assert "%5B" in why_unreadable("redis://:s3[cret@h", ValueError("Invalid IPv6 URL"))
    assert why_unreadable("redis://h:s3", error) == str(error)


def test_the_examples_are_right():
    assert doctest.testmod(module).failed == 0


def test_a_backends_name_is_no_url():
    assert [is_redis_url(it) for it in ("redis", "rediss", "sentinel", "", None)] == [False] * 5
    assert [is_redis_url(it) for it in ("redis://", "REDISS://h", "sentinel://a;b")] == [True] * 3
