"""Letters in Redis: every write one script, a page's cost independent of how many there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import redis

from celery_idem.core.settings import DEFAULT_STORE_PATIENCE_S
from celery_idem.deadletters import codec
from celery_idem.deadletters.base import TRAIL_S, Filter, Group
from celery_idem.deadletters.letter import MAX_HISTORY, Attempt, Letter, Message, State
from celery_idem.deadletters.memory import grouped, matches
from celery_idem.stores.redis.connection import client_from_url
from celery_idem.stores.redis.scripts import Script, ScriptRunner

_PUT, _NOTE, _TAKE, _GIVE_BACK, _DELETE, _FIND, _GROUPS, _TALLY = (
    Script("celery_idem.deadletters.redis", name)
    for name in ("put", "note", "take", "give_back", "delete", "find", "groups", "tally")
)
#: Letters that one look of a walk brings; index entries that one script looks at, so that the
#: server is not held up (about 10 ms).
WALK_BATCH = 500
MOST_LOOKED_AT = 20_000
_FIELDS = ("da", "bo", "fm", "lm", "ti", "po", "hi", "or", "st")
_HIGHEST = "+inf"


class RedisLetterStore:
    """See :class:`celery_idem.deadletters.base.LetterStore`.

    All keys begin with ``{prefix:dlq}:``: one slot of a cluster. A letter of a small job takes
    about 4.1 KB (a million: 4.1 GB), most of it headers and traceback.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        prefix: str = "idem",
        patience_s: float = DEFAULT_STORE_PATIENCE_S,
    ) -> None:
        self.client = client
        self._base = f"{{{prefix}:dlq}}:".encode()
        self._scripts = ScriptRunner(client, patience_s)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "idem",
        patience_s: float = DEFAULT_STORE_PATIENCE_S,
        **options: Any,
    ) -> RedisLetterStore:
        """A store on the server of the URL."""
        return cls(client_from_url(url, **options), prefix=prefix, patience_s=patience_s)

    # --- writing -------------------------------------------------------------------------

    def put(self, letter: Letter) -> Letter:
        self._call(
            _PUT,
            letter.id,
            codec.dump_letter(letter),
            letter.message.body,
            letter.task,
            letter.lane,
            letter.reason.value,
            letter.fault.group,
            letter.key,
            letter.fault.error_type,
            letter.fault.place,
            _searched(letter),
            letter.message.queue,
            "1" if letter.replayable else "0",
            letter.worker,
            os.urandom(9).hex(),
            str(MAX_HISTORY),
            *_brought(letter),
        )
        return self.get(letter.id) or letter

    def note(self, letter_id: str, attempt: Attempt) -> bool:
        return bool(self._call(_NOTE, *_noted(letter_id, attempt)))

    def edit(self, letter_id: str, message: Message, key: str, attempt: Attempt) -> bool:
        letter = self.get(letter_id)
        if letter is None:
            return False
        edited = replace(letter, message=message, key=key)
        return bool(
            self._call(
                _NOTE,
                *_noted(letter_id, attempt),
                codec.dump_letter(edited),
                message.body,
                codec.dump_message(letter.message),
                key,
                _searched(edited),
            )
        )

    def take(self, letter_id: str, by: str, lease_ms: int) -> Letter | None:
        if not self._call(_TAKE, letter_id, by, str(lease_ms)):
            return None
        return self.get(letter_id)

    def give_back(self, letter_id: str, by: str) -> bool:
        return bool(self._call(_GIVE_BACK, letter_id, by))

    def delete(self, letter_id: str, by: str = "", *, sent: bool = False) -> bool:
        return bool(self._call(_DELETE, letter_id, by, str(TRAIL_S if sent else 0)))

    # --- reading -------------------------------------------------------------------------

    def get(self, letter_id: str) -> Letter | None:
        return next(iter(self._letters([letter_id])), None)

    def page(self, wanted: Filter, after: int = 0, limit: int = 50) -> list[Letter]:
        if wanted.ids:
            return self._of_ids(wanted, after)[:limit]
        low, high = _bounds(wanted)
        if after:
            high = str(min(after - 1, int(high)) if high != _HIGHEST else after - 1)
        letters: list[Letter] = []
        while len(letters) < limit:
            ids, beyond = self._find("new", low, high, limit - len(letters), wanted)
            letters += (it for it in self._letters(ids) if matches(it, wanted))
            if not beyond:
                break
            high = str(int(beyond) - 1)
        return letters

    def walk(self, wanted: Filter) -> Iterator[Letter]:
        if wanted.ids:
            yield from reversed(self._of_ids(wanted, 0))
            return
        low, high = _bounds(wanted)
        newest = self.client.get(self._base + b"last")
        if newest is None:
            return
        if high == _HIGHEST:
            high = str(int(newest))
        while True:
            ids, beyond = self._find("old", low, high, WALK_BATCH, wanted)
            yield from (it for it in self._letters(ids) if matches(it, wanted))
            if not beyond:
                return
            low = str(int(beyond) + 1)

    def count(self, wanted: Filter) -> int:
        if wanted.ids:
            return len(self._of_ids(wanted, 0))
        low, high = _bounds(wanted)
        indexes = _indexes(wanted)
        if not wanted.text and not wanted.key and len(indexes) <= 1:
            index = indexes[0] if indexes else "all"
            return int(self.client.zcount(self._base + _coded(index), low, high))
        if wanted.key:
            return len(self.page(wanted, limit=1_000_000_000))
        total = 0
        while True:
            ids, beyond = self._find("old", low, high, MOST_LOOKED_AT, wanted)
            total += len(ids)
            if not beyond:
                return total
            low = str(int(beyond) + 1)

    def groups(self, wanted: Filter) -> Sequence[Group]:
        others = replace(wanted, since_ms=0, until_ms=0, group="", task="")
        if wanted.ids or wanted.key:
            return grouped(self.walk(wanted))
        if others != Filter():
            return self._tallied(wanted)
        low, high = _bounds(wanted)
        rows = self._call(_GROUPS, low, high, wanted.group, wanted.task)
        found = [_group(row) for row in rows]
        return sorted(found, key=lambda group: -group.count)

    def values(self, what: str, limit: int = 100) -> list[str]:
        name = self._base + b"names:" + what.encode()
        found: Any = self._scripts.patiently(lambda: self.client.zrange(name, 0, limit - 1))
        return [each.decode("utf-8", "surrogatepass") for each in found]

    def trail(self, letter_id: str) -> tuple[Attempt, ...]:
        name = self._base + b"sent:" + _coded(letter_id)
        return _history(self._scripts.patiently(lambda: self.client.hget(name, "hi")))

    def close(self) -> None:
        self._scripts.close()

    # --- pieces --------------------------------------------------------------------------

    def _call(self, script: Script, *args: str | bytes) -> Any:
        packed = (arg if isinstance(arg, bytes) else _coded(arg) for arg in args)
        return self._scripts.call(script, self._base, *packed)

    def _find(
        self, order: str, low: str, high: str, wanted_ids: int, wanted: Filter
    ) -> tuple[list[str], str]:
        if wanted.key:
            return self._of_key(order, low, high, wanted.key), ""
        ids, beyond = self._call(
            _FIND, order, low, high, str(wanted_ids), str(MOST_LOOKED_AT),
            wanted.text.casefold(), *_indexes(wanted),
        )  # fmt: skip
        return [each.decode() for each in ids], beyond.decode()

    def _tallied(self, wanted: Filter) -> list[Group]:
        low, high = _bounds(wanted)
        found: dict[str, Group] = {}
        while True:
            rows, beyond = self._call(
                _TALLY, low, high, str(MOST_LOOKED_AT), wanted.text.casefold(), *_indexes(wanted)
            )
            for name, count, first, last, example in rows:
                group = name.decode()
                more = Group(
                    group, "", "", int(count), int(first) // 1000, int(last) // 1000,
                    example.decode(),
                )  # fmt: skip
                before = found.get(group)
                if before is not None:
                    more = replace(more, count=before.count + more.count, first_ms=before.first_ms)
                found[group] = more
            if not beyond:
                break
            low = str(int(beyond) + 1)
        named = (self._named(group) for group in found.values())
        return sorted(named, key=lambda group: -group.count)

    def _named(self, group: Group) -> Group:
        name = self._base + b"fault:" + _coded(group.group)
        row: Any = self._scripts.patiently(lambda: self.client.hmget(name, "type", "place"))
        error_type, place = ((it or b"").decode("utf-8", "replace") for it in row)
        return replace(group, error_type=error_type, place=place)

    def _of_key(self, order: str, low: str, high: str, key: str) -> list[str]:
        """A key has few letters: all of them, in order."""
        start = _coded(key) + b"\0"
        members = self._scripts.patiently(
            lambda: self.client.zrangebylex(
                self._base + b"keys", b"[" + start, b"(" + start + b"\xff"
            )
        )
        ids = [member[len(start) :].decode() for member in members]  # type: ignore[union-attr]
        most = float("inf") if high == _HIGHEST else int(high)
        found = [it for it in self._letters(ids) if int(low) <= it.position <= most]
        found.sort(key=lambda it: it.position, reverse=order == "new")
        return [it.id for it in found]

    def _of_ids(self, wanted: Filter, after: int) -> list[Letter]:
        """Newest first."""
        found = [it for it in self._letters(dict.fromkeys(wanted.ids)) if matches(it, wanted)]
        found.sort(key=lambda it: -it.position)
        return [it for it in found if not after or it.position < after]

    def _letters(self, ids: Iterable[str]) -> list[Letter]:
        wanted = list(ids)
        if not wanted:
            return []

        def ask() -> list[Any]:
            pipe = self.client.pipeline(transaction=False)
            for each in wanted:
                pipe.hmget(self._base + b"l:" + _coded(each), *_FIELDS)
            return pipe.execute()

        rows = self._scripts.patiently(ask)
        return [_letter(each, row) for each, row in zip(wanted, rows, strict=True) if row[0]]


def _coded(text: str) -> bytes:
    """Whatever a message holds: half a character, too."""
    return text.encode("utf-8", "surrogatepass")


def _letter(letter_id: str, row: Sequence[Any]) -> Letter:
    data, body, first_ms, last_ms, times, position, history, original, state = row
    return codec.load_letter(
        letter_id,
        data,
        body or b"",
        first_ms=int(first_ms),
        last_ms=int(last_ms),
        times=int(times),
        position=int(position),
        history=_history(history),
        original=codec.load_message(original) if original else None,
        state=State(state.decode()),
    )


def _history(lines: Any) -> tuple[Attempt, ...]:
    return tuple(codec.load_attempt(line) for line in (lines or b"").split(b"\n") if line)


def _brought(letter: Letter) -> list[str]:
    if not letter.history:
        return []
    return [
        "\n".join(codec.dump_attempt(it) for it in letter.history),
        str(letter.times),
        str(letter.first_died_ms),
        str(letter.last_died_ms),
        codec.dump_message(letter.original) if letter.original else "",
    ]


def _group(row: Sequence[Any]) -> Group:
    name, error_type, place, count, first, last, example = row
    return Group(
        name.decode(),
        error_type.decode("utf-8", "replace"),
        place.decode("utf-8", "replace"),
        int(count),
        int(first) // 1000,
        int(last) // 1000,
        example.decode(),
    )


def _noted(letter_id: str, attempt: Attempt) -> list[str]:
    return [
        letter_id, attempt.what, attempt.by, attempt.detail, str(attempt.at_ms), str(MAX_HISTORY)
    ]  # fmt: skip


def _indexes(wanted: Filter) -> list[str]:
    named = (
        ("task", wanted.task),
        ("lane", wanted.lane),
        ("queue", wanted.queue),
        ("state", wanted.state.value if wanted.state else ""),
        ("reason", wanted.reason.value if wanted.reason else ""),
        ("group", wanted.group),
    )
    return [f"{name}:{value}" for name, value in named if value]


def _bounds(wanted: Filter) -> tuple[str, str]:
    """Lowest and highest position, both included: positions are microseconds, or a little more."""
    low = wanted.since_ms * 1000
    return str(low), str(wanted.until_ms * 1000 - 1) if wanted.until_ms else _HIGHEST


def _searched(letter: Letter) -> str:
    parts = (letter.task, letter.key, letter.fault.error_type, letter.fault.message)
    return "\n".join(parts).casefold()
