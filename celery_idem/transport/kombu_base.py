"""kombu's classes that ours extend, without types: its stubs know only the public half of them."""

from __future__ import annotations

import importlib
from typing import Any

redis: Any = importlib.import_module("kombu.transport.redis")
virtual: Any = importlib.import_module("kombu.transport.virtual")

Channel: Any = redis.Channel
Transport: Any = redis.Transport
Poller: Any = redis.MultiChannelPoller
QoS: Any = virtual.QoS
#: ``Queue``'s options under AMQP's names (``expires`` in s → ``x-expires`` in ms).
queue_arguments: Any = importlib.import_module("kombu.transport.base").to_rabbitmq_queue_arguments
