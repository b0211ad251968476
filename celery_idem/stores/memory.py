"""A store in this process: for tests, eager mode, and as the model that other stores answer to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from celery_idem.core import protocol
from celery_idem.core.histogram import Histogram, RunCounts, days_back, merged, today
from celery_idem.core.record import Claim, ClaimRequest, Ending, Lease, Outcome, Record


def _monotonic_us() -> int:
    return time.time_ns() // 1000


class MemoryStore:
    """Records in a dict under one lock. Nothing survives the process.

    ``now_us`` is the store's clock, in microseconds; tests turn it by hand.
    """

    def __init__(self, now_us: Callable[[], int] = _monotonic_us) -> None:
        self._now_us = now_us
        self._records: dict[str, Record] = {}
        self._run_times: dict[int, dict[tuple[str, str, int], int]] = {}
        self._lock = threading.Lock()

    def claim(self, request: ClaimRequest) -> Outcome:
        with self._lock:
            now_us = self._now_us()
            record, outcome = protocol.claim(self._read(request.key, now_us), request, now_us)
            self._records[request.key] = record
            return outcome

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        with self._lock:
            now_us = self._now_us()
            answers = []
            for lease in leases:
                record, held = protocol.renew(self._read(lease.key, now_us), lease, now_us)
                self._write(lease.key, record)
                answers.append(held)
            return answers

    def complete(self, claim: Claim, result: bytes) -> bool:
        with self._lock:
            now_us = self._now_us()
            record, accepted = protocol.complete(
                self._read(claim.key, now_us), claim, result, now_us
            )
            self._write(claim.key, record)
            return accepted

    def settle(self, key: str, task_id: str) -> None:
        with self._lock:
            self._write(key, protocol.settle(self._read(key, self._now_us()), task_id))

    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        with self._lock:
            now_us = self._now_us()
            record, accepted = protocol.release(
                self._read(claim.key, now_us), claim, ending, wait_ms, now_us
            )
            self._write(claim.key, record)
            return accepted

    def crash(self, key: str, owner: str) -> int | None:
        with self._lock:
            record, crashes = protocol.crash(self._read(key, self._now_us()), owner)
            self._write(key, record)
            return crashes

    def put_step(self, claim: Claim, name: str, value: bytes) -> bool:
        with self._lock:
            now_us = self._now_us()
            record, accepted = protocol.put_step(
                self._read(claim.key, now_us), claim, name, value, now_us
            )
            self._write(claim.key, record)
            return accepted

    def revoke(self, key: str, retention_ms: int) -> None:
        with self._lock:
            now_us = self._now_us()
            self._records[key] = protocol.revoke(self._read(key, now_us), key, retention_ms, now_us)

    def free(self, key: str) -> bool:
        with self._lock:
            before = self._read(key, self._now_us())
            after = protocol.free(before)
            self._write(key, after)
            return after is not before

    def forget(self, key: str) -> bool:
        with self._lock:
            return self._records.pop(key, None) is not None

    def get(self, key: str) -> Record | None:
        with self._lock:
            return self._read(key, self._now_us())

    def scan(self, contains: str = "", limit: int = 1000) -> Iterator[Record]:
        with self._lock:
            now_us = self._now_us()
            keys = [key for key in self._records if contains in key]
            found = [record for key in keys if (record := self._read(key, now_us))]
        yield from found[:limit]

    def carry(self, counts: RunCounts) -> None:
        with self._lock:
            for run, times in counts.items():
                day = self._run_times.setdefault(today(), {})
                day[run] = day.get(run, 0) + times

    def run_times(self, days: int) -> dict[tuple[str, str], Histogram]:
        with self._lock:
            return merged(
                run for day in days_back(days) for run in self._run_times.get(day, {}).items()
            )

    def warnings(self) -> list[str]:
        return ["the memory store forgets everything when its process ends"]

    def close(self) -> None:
        """Nothing to let go of; the records stay."""

    def _read(self, key: str, now_us: int) -> Record | None:
        record = self._records.get(key)
        if record is not None and 0 < record.expires_ms <= now_us // 1000:
            del self._records[key]
            return None
        return record

    def _write(self, key: str, record: Record | None) -> None:
        if record is not None:
            self._records[key] = record
