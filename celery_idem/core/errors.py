"""One tree of errors. Each says what is wrong, with the value, and what to do."""

from __future__ import annotations


class IdemError(Exception):
    """Root of everything that this package raises."""


class ConfigError(IdemError, ValueError):
    """A setting or task option that can't keep the promise: raised at start-up, never later."""


class KeyInvalid(IdemError, ValueError):
    """The idempotency key can't be made: empty, too long, a missing name, or not stable."""


class KeyReused(IdemError):
    """The key belongs to a call with other arguments (HTTP 422 in the idempotency-key draft)."""

    used_by: str = ""  #: the task id that used it first


class AlreadyProcessed(IdemError):
    """The work of this key is done (``on_duplicate="raise"``, or a plain ``idempotent`` block).

    ``result`` is what the first run returned, or ``None`` where it kept nothing.
    """

    def __init__(self, message: str = "", result: object = None) -> None:
        super().__init__(message)
        self.result = result


class InProgress(IdemError):
    """Somebody else holds the claim of this key now.

    ``retry_after_s`` is when its lease could be over, in seconds by the store's clock.
    """

    def __init__(self, message: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LeaseLost(IdemError):
    """The claim ran out and somebody else took it: this run may not record anything any more."""


class Poisoned(IdemError):
    """The key's claims ended by a crash ``max_crashes`` times: the body is not run again."""

    crashes: int = 0  #: how many there were


class KeyRevoked(IdemError):
    """An operator revoked the key: the body is not run."""


class ResultUnavailable(IdemError):
    """The work is done, but its recorded result can't be brought back. Never a wrong value."""


class StoreUnavailable(IdemError):
    """The store could not be reached for as long as ``store_patience_s`` allows."""


class NotConfirmed(IdemError):
    """The broker did not say in time that it has a message, which it may have all the same: what it
    was sent in exchange for stays as it is."""


class RequeuedTooOften(IdemError):
    """A body raised ``Reject(requeue=True)`` ``max_requeues`` times: a failure, not a loop."""


class BodyAborted(IdemError):
    """The body ended with what is no ``Exception`` (``asyncio.CancelledError``, ``SystemExit`` in a
    thread), of which Celery would tell nobody: a failure, with it as its cause."""


class BodyNotRun(IdemError, TypeError):
    """The body returned a coroutine or a generator: nothing of it has run, so nothing is done."""


class StepError(IdemError):
    """Something about ``self.step``."""


class StepMisused(StepError, ValueError):
    """A step's name is used twice in one run, was recorded under another function, or is bad."""


class StepUncertain(StepError):
    """An at-most-once step was started and not seen to end: a person decides, not a second try."""


class StepBusy(StepError):
    """A shared step is being run by another task; the job comes back when that could be over.

    ``retry_after_s``: when, in seconds.
    """

    def __init__(self, message: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
