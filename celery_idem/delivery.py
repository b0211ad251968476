"""One delivery of a task, as this package sees it: its key, its owner token, its attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_idem.core.errors import KeyInvalid
from celery_idem.core.key import MAX_RECORD_KEY_CHARS, check_key
from celery_idem.guard import new_owner
from celery_idem.options import Terms

#: Header of a key given per call; kept by retries and replays.
KEY_HEADER = "idem_key"
#: Header: the fingerprint of the work's first arguments, in a retry with other arguments.
FINGERPRINT_HEADER = "idem_fingerprint"
#: Header: how often this message has stepped aside for a holder.
WAITS_HEADER = "idem_waits"
#: Header: how often its body has asked for a requeue.
REQUEUES_HEADER = "idem_requeues"
#: Header: how often it was replayed from the dead letters.
REPLAYS_HEADER = "idem_replays"
#: Attempts of one replay: a replay's retries start at 0 again and still count as newer.
ATTEMPTS_PER_REPLAY = 1_000_000
#: Attempts of one ``Task.replace()``: what replaces a task has its id, and starts at 0 again, too.
ATTEMPTS_PER_REPLACEMENT = 1_000_000_000

#: Header: the lane that it was sent to; kept by retries and replays.
LANE_HEADER = "idem_lane"
#: What names a piece of work, or orders its attempts: a retry without would be another's, or older
#: than what it follows.
_OF_THE_WORK = (KEY_HEADER, FINGERPRINT_HEADER, REPLAYS_HEADER, LANE_HEADER)

#: Celery's own count of replacements: a header of the message, a field of the request.
_REPLACEMENTS = "replaced_task_nesting"

#: Where the worker's parent leaves the delivery for its child: a part of the request that Celery
#: neither sends on with a retry nor reads.
_PLACE = "idem"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the claim needs to know of a message."""

    key: str
    owner: str
    task_id: str
    attempt: int
    fingerprint: str = ""
    waits: int = 0
    requeues: int = 0
    renewed_by_worker: bool = False  #: the parent's keeper renews the lease

    @classmethod
    def of(
        cls, task: Any, terms: Terms, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Delivery:
        """The delivery that the task's current request is.

        Raises :class:`KeyInvalid` where the key can't be made: the task's own failure.
        """
        request = task.request
        headers = request.headers or {}
        handed = cls.handed_over(request)
        return cls(
            key=handed.get("key") or record_key(task, terms, request.id, headers, args, kwargs),
            owner=handed.get("owner") or new_owner(),
            task_id=request.id,
            attempt=attempt_of(headers, request.retries, request.replaced_task_nesting),
            fingerprint=_text(headers, FINGERPRINT_HEADER) or terms.fingerprint_of(args, kwargs),
            waits=_count(headers, WAITS_HEADER),
            requeues=_count(headers, REQUEUES_HEADER),
            renewed_by_worker="owner" in handed,
        )

    @classmethod
    def without_key(cls, request: Any) -> Delivery:
        """A delivery whose key is not known yet, or can't be made."""
        headers = request.headers or {}
        return cls(
            key="",
            owner="",
            task_id=request.id,
            attempt=attempt_of(headers, request.retries, request.replaced_task_nesting),
            waits=_count(headers, WAITS_HEADER),
            requeues=_count(headers, REQUEUES_HEADER),
        )

    @staticmethod
    def hand_over(request_dict: dict[str, Any], owner: str, key: str | None, message: Any) -> None:
        """Leave the owner token, the key where it is known, and the message as it came, for the
        child.

        The body is the very object that Celery sends to the child anyway, and pickle writes an
        object once: it costs a reference, not a copy.
        """
        # A copy: kombu puts the message's own properties back on the queue with a requeue.
        properties = dict(request_dict.get("properties") or {})
        properties[_PLACE] = {
            "owner": owner,
            "key": key,
            "body": message.body,
            "headers": message.headers,
            "properties": message.properties,
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
        }
        request_dict["properties"] = properties

    @staticmethod
    def handed_over(request: Any) -> Mapping[str, Any]:
        """What the worker's parent left for this request; empty outside a worker."""
        handed = (request.properties or {}).get(_PLACE)
        return handed if isinstance(handed, Mapping) else {}

    def kept_by_retry(self, task_name: str) -> dict[str, str]:
        """Headers for a retry with other arguments: it is the same work, under the same key."""
        kept = {KEY_HEADER: self.key[len(f"{scope_of(task_name)}:") :]}
        return {**kept, FINGERPRINT_HEADER: self.fingerprint} if self.fingerprint else kept

    @staticmethod
    def of_the_work(headers: Mapping[str, Any]) -> dict[str, Any]:
        """Headers that every retry has, whatever headers its body gives it."""
        return {name: headers[name] for name in _OF_THE_WORK if name in headers}

    @staticmethod
    def without_counts(headers: Mapping[str, Any]) -> dict[str, Any]:
        """Headers for a retry: it waits and is requeued on its own account."""
        return {k: v for k, v in headers.items() if k not in (WAITS_HEADER, REQUEUES_HEADER)}


def is_broadcast(app: Any, delivery_info: Any) -> bool:
    """Whether every worker gets a message of this exchange: one of the app's queues (kombu's
    ``Broadcast``) is bound to it, and it is a fanout."""
    name = (delivery_info or {}).get("exchange")
    if not name:
        return False
    exchanges = (queue.exchange for queue in app.amqp.queues.values())
    return any(it is not None and it.name == name and it.type == "fanout" for it in exchanges)


def scope_of(task_name: str) -> str:
    """What a task's keys begin with: its name. A name with a colon in it is written so that no
    other task and key can read the same."""
    return task_name.replace("%", "%25").replace(":", "%3A")


def record_key(
    task: Any,
    terms: Terms,
    task_id: str,
    headers: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """The whole key: the task's name, so that two tasks never share a result, then the key."""
    given = headers.get(KEY_HEADER)
    own = check_key(given, task.name) if given is not None else terms.key_of(task_id, args, kwargs)
    key = f"{scope_of(task.name)}:{own}"
    if len(key) > MAX_RECORD_KEY_CHARS:
        raise KeyInvalid(
            f"{task.name}: task name and key have {len(key)} characters, allowed are "
            f"{MAX_RECORD_KEY_CHARS}; give the task a shorter name"
        )
    return key


def attempt_of(
    headers: Mapping[str, Any], retries: int | None, replacements: int | None = None
) -> int:
    """Grows with every retry, by more with every replay, by most with every replacement.

    ``replacements`` is told where ``headers`` holds the custom ones only.
    """
    if replacements is None:
        replacements = _count(headers, _REPLACEMENTS)
    replays = _count(headers, REPLAYS_HEADER)
    return replacements * ATTEMPTS_PER_REPLACEMENT + replays * ATTEMPTS_PER_REPLAY + (retries or 0)


def described_attempt(attempt: int) -> str:
    """What :func:`attempt_of` put together, for a person: ``"2"``, ``"0 of replay 1"``."""
    replacements, rest = divmod(attempt, ATTEMPTS_PER_REPLACEMENT)
    replays, retries = divmod(rest, ATTEMPTS_PER_REPLAY)
    of_replay = f" of replay {replays}" if replays else ""
    return f"{retries}{of_replay}" + (f", after replacement {replacements}" if replacements else "")


def _text(headers: Mapping[str, Any], name: str) -> str:
    value = headers.get(name)
    return value if isinstance(value, str) and len(value) <= MAX_RECORD_KEY_CHARS else ""


def _count(headers: Mapping[str, Any], name: str) -> int:
    value = headers.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0
