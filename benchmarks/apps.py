"""What the measured apps have in common. Read from the environment: ``BENCH_BROKER``,
``BENCH_STORE`` (default: the broker)."""

from __future__ import annotations

import os

from celery import Celery


def make_app(name: str) -> Celery:
    """An app whose tasks go to the queue of its name."""
    broker = os.environ.get("BENCH_BROKER", "redis://127.0.0.1:6379/0")
    app = Celery(name, broker=broker, backend=broker)
    app.conf.update(
        task_default_queue=name,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        idem={"store": os.environ.get("BENCH_STORE", broker)},
    )
    return app
