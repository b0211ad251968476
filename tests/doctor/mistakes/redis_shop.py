# ruff: noqa
"""A shop on Redis, its keeper switched off. What has no line of its own is listed in ``NO_LINE``."""

import os
import time
import uuid

import redis
import requests
from celery import Celery
from django.core.mail import send_mail

from celery_idem import IdempotentTask, idempotent

app = Celery("shop", broker=os.environ["TEST_BROKER"], backend=os.environ["TEST_BROKER"])
app.conf.update(
    task_default_queue="low",
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=8,
    worker_concurrency=2,
    result_expires=3600,
    broker_transport_options={"visibility_timeout": 3600},
    idem={
        "visibility_keeper": False,
        "lanes": {"critical": {"weight": 10, "reserve": 2}, "normal": 5, "low": 1},
        "lane_order": "strict",
    },
)
NO_LINE = {
    "IDEM030": "worker_prefetch_multiplier",
    "IDEM031": 'idem["lane_order"]',
    "IDEM032": 'idem["lanes"]',
    "IDEM034": "worker_concurrency",
    "IDEM040": "maxmemory-policy",
    "IDEM041": "appendonly",
    "IDEM042": 'broker_transport_options["visibility_timeout"]',
    "IDEM060": "clock",
    "IDEM070": "celery",
}

r = redis.Redis.from_url(os.environ["TEST_BROKER"])


@app.task(base=IdempotentTask, idem_key="{order}", time_limit=60)
def right(order):
    requests.post("https://partner.example/orders", json={"id": order}, timeout=5)


@app.task(base=IdempotentTask, max_retries=8, retention_s=3600, time_limit=60)  # expect: IDEM002
def forgets_too_soon(order): ...


@app.task(base=IdempotentTask, acks_late=False, time_limit=60)  # expect: IDEM003
def acks_early(order): ...


@app.task(base=IdempotentTask, idem_key="{oder}", time_limit=60)  # expect: IDEM003
def misspells_its_key(order): ...


@app.task(base=IdempotentTask, lane="criticl", time_limit=60)  # expect: IDEM003
def misspells_its_lane(order): ...


@app.task(acks_late=True, time_limit=7200)  # expect: IDEM010
def runs_longer_than_it_is_invisible(order): ...


@app.task(acks_late=True, time_limit=1000)  # expect: IDEM010
def waits_longer_than_it_is_invisible(order): ...


@app.task(bind=True, autoretry_for=(OSError,), default_retry_delay=7200)  # expect: IDEM011
def retries_late(self, order): ...


@app.task(bind=True)
def retries_late_by_hand(self, order):
    raise self.retry(countdown=2 * 3600)  # expect: IDEM011


@app.task
def sends_for_tomorrow(order):
    right.apply_async((order,), countdown=24 * 3600)  # expect: IDEM011


@app.task(base=IdempotentTask, time_limit=400, max_lease_s=60)  # expect: IDEM013
def outlives_its_lease(order): ...


@app.task(base=IdempotentTask)  # expect: IDEM014
def may_hang(order): ...


@app.task  # expect: IDEM020
def mail_that_a_kill_loses(to):
    send_mail("Hello", "You", None, [to])


@app.task(acks_late=True, reject_on_worker_lost=False)  # expect: IDEM021
def lost_with_its_process(order): ...


@app.task(acks_late=True, acks_on_failure_or_timeout=False)  # expect: IDEM022
def deleted_when_it_fails(order): ...


@app.task(queue="reports")  # expect: IDEM033
def goes_to_no_lane(order): ...


@app.task(base=IdempotentTask, time_limit=60)  # expect: IDEM043
def returns_much(order):
    return requests.get("https://partner.example/catalogue", timeout=5).json()


@app.task
def new_key_each_time(order):
    right.apply_async((order,), idem_key=f"order:{uuid.uuid4()}")  # expect: IDEM050


def key_of(order):
    return f"{order}:{time.time():.0f}"


@app.task
def new_key_by_a_function(order):
    with idempotent(key_of(order)):  # expect: IDEM050
        r.set("last", order)


@app.task(acks_late=True)
def mails_twice(to):
    send_mail("Hello", "You", None, [to])  # expect: IDEM051


@app.task(base=IdempotentTask, idem_key="{order}", time_limit=60)
def one_key_for_both(order, to):
    send_mail("Paid", "Thanks", None, [to])
    requests.post("https://partner.example/orders", json={"id": order})  # expect: IDEM052


@app.task(base=IdempotentTask, idem_key="{day}", time_limit=60)
def one_key_for_all(day, readers):
    for to in readers:
        send_mail("Today", "News", None, [to])  # expect: IDEM052


@app.task(acks_late=True)
def counts_twice(order):
    r.incrby("orders:sum", order)  # expect: IDEM053


@app.task  # expect: IDEM020
def notices_too_late(order):
    requests.post("https://partner.example/ship", json={"id": order})
    if not r.set(f"shipped:{order}", 1, nx=True, ex=86400):  # expect: IDEM054
        raise RuntimeError("shipped twice")


@app.task(acks_late=True)
def swallows_its_retry(order):
    if not r.set(f"import:{order}", 1, nx=True, ex=86400):  # expect: IDEM055
        return
    requests.put(f"https://partner.example/orders/{order}", json={}, timeout=5)


@app.task
def queue_by_priority(job, priority):
    r.zadd("jobs", {job: priority})  # expect: IDEM056


@app.task
def next_job():
    return r.zpopmin("jobs")
