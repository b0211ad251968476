"""kombu's account of unacked messages, on top of a session's."""

from __future__ import annotations

from typing import Any

from celery_idem.transport import kombu_base


class QoS(kombu_base.QoS):  # type: ignore[misc]
    """Prefetch is kombu's; what is acked, requeued and given back is the session's."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.settle(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.requeue(delivery_tag)
        else:
            self.channel.settle(delivery_tag)
        super().ack(delivery_tag)

    def free(self) -> int | None:
        """How many more messages may be taken; ``None`` without a limit."""
        if not self.prefetch_count:
            return None
        return int(self.prefetch_count) - (len(self._delivered) - len(self._dirty))

    @property
    def is_patched(self) -> bool:
        """Whether somebody (Celery's ``worker_disable_prefetch``) has put a limit of their own."""
        return "can_consume" in self.__dict__

    def restore_unacked(self, client: Any = None) -> list[Any]:
        """``basic_recover``: everything unacked comes again, at once."""
        self._flush()
        tags = list(self._delivered)
        self.channel.give_back(tags)
        self._delivered.clear()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """At the end of the channel or the process."""
        self._on_collect.cancel()
        self.channel.end_session()
        self._delivered.clear()
        self._delivered.restored = True

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: leases are renewed and swept by their keepers."""
