"""Scored queues: a message's priority is a number, and can change while the message waits.

Declare one with ``Queue("reports", queue_arguments={"x-queue-type": "scored"})`` and send with
``apply_async(priority=12.5)``: the lowest number goes first, and the oldest among equals. With
``"x-aging-rate": 0.1`` a message gains that many points for every second that it waits: all age
alike, so one of score 60 overtakes a new one of score 0 after ten minutes.
"""

from __future__ import annotations

from typing import Any

from celery_idem.core.errors import ConfigError


def reprioritise(app: Any, queue: str, task_id: str, score: float) -> bool:
    """Give a task that waits in a scored queue another score; its age goes on counting.

    False when it does not wait there (any more). Raises :class:`ConfigError` where the app's
    broker is not the streams transport, or the score is no finite number.
    """
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        if not hasattr(channel, "reprioritise"):
            raise ConfigError(
                f"reprioritise needs a redis-streams:// broker, not {connection.as_uri()}"
            )
        return bool(channel.reprioritise(queue, task_id, score))
