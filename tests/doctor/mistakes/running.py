# ruff: noqa
"""What runs while the project is checked: the deploy before, and an app of others."""

import os

from celery import Celery

from celery_idem import IdempotentTask

#: the deploy before: a worker does not start with the mistakes of this one
before = Celery("shop", broker=os.environ["TEST_BROKER"])
before.conf.broker_transport_options = {"visibility_timeout": 3600}
before.conf.idem = {"lanes": {"critical": 10, "normal": 5, "low": 1}, "visibility_keeper": False}

others = Celery("others", broker=os.environ["TEST_BROKER"])
others.conf.broker_transport_options = {"visibility_timeout": 3}


@before.task(base=IdempotentTask, name="shop.redis_shop.right", shared=False)
def right(order): ...


@others.task(name="others.job", shared=False)
def job(): ...
