"""What one task wants, worked out once per task from its attributes and the app's settings."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery import Task

from celery_idem.binding import in_one
from celery_idem.core import key as keys
from celery_idem.core.errors import ConfigError, KeyInvalid
from celery_idem.core.retry_window import (
    RetryPolicy,
    RetryWindow,
    least_retention,
    retention,
    retry_window,
)
from celery_idem.core.settings import Settings, number, whole

#: kombu's default when ``broker_transport_options`` names no visibility timeout, in seconds.
DEFAULT_VISIBILITY_TIMEOUT_S = 3600.0
#: The same by transport (``driver_type``), of those that have such a timeout.
VISIBILITY_DEFAULTS_S = {"redis": DEFAULT_VISIBILITY_TIMEOUT_S, "sqs": 1800.0}
#: Transports that have none: what an app says of it counts nowhere.
_WITHOUT_VISIBILITY = ("amqp", "redis-streams", "memory")

ON_DUPLICATE = ("return", "ignore", "raise")
ON_CONFLICT = ("wait", "skip", "raise")

#: Class attributes that an idempotent task understands, beside Celery's own.
ATTRIBUTES = (
    "idem_key", "lease_s", "max_lease_s", "retention_s", "max_crashes", "lane", "on_duplicate",
    "on_conflict", "done_if", "cooldown_s", "fingerprint",
)  # fmt: skip
#: Those that mean nothing on a plain task, and are nobody else's.
_ONLY_OURS = ("idem_key", "cooldown_s", "on_duplicate", "on_conflict", "done_if")


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a task's keys are claimed."""

    lease_ms: int
    retention_ms: int
    max_crashes: int
    max_lease_s: float | None  #: None: the hard time limit of the call
    max_result_bytes: int
    max_requeues: int
    on_duplicate: str
    on_conflict: str
    key_of: Callable[[str, Sequence[Any], Mapping[str, Any]], str]
    fingerprint_of: Callable[[Sequence[Any], Mapping[str, Any]], str]
    done_if: Callable[..., Any] | None
    cooldown_ms: int | None
    cooldown_key_of: Callable[[str, Sequence[Any], Mapping[str, Any]], str]


#: Not by ``hasattr``: a look at ``Task.app`` binds the class to whatever app is the current one.
_CELERYS = frozenset(name for kind in Task.__mro__ for name in vars(kind))


def _check_names(task: Any) -> None:
    """A misspelt option would be an attribute of the user's own, and its promise silently gone.

    Looked at is what is said of an idempotent task: mixins and what computes a value are not.
    """
    for owner in task.__mro__:
        if owner.__module__.split(".")[0] in ("celery", "celery_idem"):
            continue
        if not hasattr(owner, "idem_key"):
            continue
        for given, value in vars(owner).items():
            if given in ATTRIBUTES or given.startswith("_") or given in _CELERYS:
                continue
            named_as_ours = given.startswith("idem_")
            if hasattr(type(value), "__get__") and not named_as_ours:
                continue  # a method, a property
            near = difflib.get_close_matches(given, ATTRIBUTES, n=1, cutoff=0.85)
            if near or named_as_ours:
                meant = f"did you mean {near[0]}?" if near else f"it knows {', '.join(ATTRIBUTES)}"
                raise ConfigError(
                    f"{task.name}: celery_idem has no task option {given!r}; {meant} (an attribute "
                    "of your own needs a name that is less like one of ours)"
                )


def check_plain(task: Any) -> None:
    """Raise :class:`ConfigError` for a plain task that says how it is idempotent: what is sent
    twice would run twice, without a word."""
    given = next((it for it in _ONLY_OURS if getattr(task, it, None) is not None), None)
    if given is not None:
        raise ConfigError(
            f"{task.name}: {given} is an option of idempotent tasks, and this is a plain one; add "
            "base=IdempotentTask, or remove it"
        )


def check_attributes(task: Any) -> None:
    """Raise :class:`ConfigError` for an option that breaks the promise or has no meaning.

    Called when the task is bound to its app, so that a bad option is seen at import.
    """
    name = task.name
    _check_names(task)
    _check_body(task)
    if not task.acks_late:
        raise ConfigError(
            f"{name}: acks_late=False breaks the promise of an idempotent task (a killed worker "
            "would lose the job); remove it, or don't use IdempotentTask here"
        )
    if task.reject_on_worker_lost is False:
        raise ConfigError(
            f"{name}: reject_on_worker_lost=False breaks the promise of an idempotent task (a "
            "killed child would lose the job); remove it"
        )
    for option, allowed in (("on_duplicate", ON_DUPLICATE), ("on_conflict", ON_CONFLICT)):
        value = getattr(task, option)
        if value not in allowed:
            raise ConfigError(
                f"{name}: {option} must be one of {', '.join(allowed)}, not {value!r}"
            )
    for option, least in (("lease_s", 0.1), ("max_lease_s", 0.1), ("retention_s", 1)):
        number(f"{name}: {option}", getattr(task, option), least=least, optional=True)
    number(f"{name}: cooldown_s", task.cooldown_s, least=0.001, optional=True)
    if task.max_crashes is not None:
        whole(f"{name}: max_crashes", task.max_crashes, least=1)
    done_if = given_function(task, "done_if")
    if done_if is not None and not callable(done_if):
        raise ConfigError(f"{name}: done_if must be callable, not {done_if!r}")
    idem_key = given_function(task, "idem_key")
    if task.cooldown_s is not None and idem_key is None:
        raise ConfigError(
            f"{name}: cooldown_s needs an idem_key that says what cools down, for example "
            'idem_key="otp:{user_id}"'
        )
    if isinstance(idem_key, str):
        keys.parse_template(idem_key, one_for_all=task.cooldown_s is not None)
    elif idem_key is not None:
        _check_key_function(name, idem_key)


def terms_of(task: Any, settings: Settings, visibility_timeout_s: float) -> Terms:
    """Work out the terms. Raises :class:`ConfigError` with the arithmetic for a retention that is
    too short, or a template that reads what the task doesn't take."""
    explicit_s = _either(task.retention_s, settings.retention_s)
    window = window_of(task, visibility_timeout_s)
    if explicit_s is not None and not getattr(task, "autoretry_for", ()):
        # whether a body asks for the longer one, only its source can tell (the doctor's IDEM002)
        policies = retry_policies(task, visibility_timeout_s)
        window = min(map(retry_window, policies), key=least_retention)
    return terms_kept(task, settings, retention(window, explicit_s))


def terms_kept(task: Any, settings: Settings, retention_s: float) -> Terms:
    """The terms with this retention. Raises :class:`ConfigError` as :func:`terms_of`."""
    signature = inspect.signature(task.run)
    lease_s = _either(task.lease_s, settings.lease_s) or settings.lease_s
    key_of = _key_of(task, signature)
    cooling = task.cooldown_s is not None
    return Terms(
        lease_ms=round(lease_s * 1000),
        retention_ms=round(retention_s * 1000),
        max_crashes=_either(task.max_crashes, settings.max_crashes) or settings.max_crashes,
        max_lease_s=_either(task.max_lease_s, settings.max_lease_s),
        max_result_bytes=settings.max_result_bytes,
        max_requeues=settings.max_requeues,
        on_duplicate=task.on_duplicate,
        on_conflict=task.on_conflict,
        # With a cool-down every call is a piece of work of its own; the key is what cools down.
        key_of=(lambda task_id, args, kwargs: task_id) if cooling else key_of,
        fingerprint_of=_fingerprint_of(task, signature),
        done_if=given_function(task, "done_if"),
        cooldown_ms=round(task.cooldown_s * 1000) if cooling else None,
        cooldown_key_of=key_of,
    )


def visibility_timeout_s(app: Any) -> float | None:
    """After which the app's broker gives a message that is not acked to another worker, in seconds;
    ``None`` where it has no such timeout, or none is known."""
    default = VISIBILITY_DEFAULTS_S.get(_transport(app))
    return None if default is None else _visibility_option(app, default)


def redelivery_s(app: Any) -> float:
    """How long a redelivery takes in the retry windows of the app's tasks, in seconds. The doctor
    and a worker that starts both ask here. Of a transport that is not known here, what the app
    says of its visibility timeout is believed."""
    known = visibility_timeout_s(app)
    if known is None and _transport(app) not in _WITHOUT_VISIBILITY:
        return _visibility_option(app, DEFAULT_VISIBILITY_TIMEOUT_S)
    return known or DEFAULT_VISIBILITY_TIMEOUT_S


def _transport(app: Any) -> str:
    """``driver_type`` of the app's broker, or its URL's scheme where that is not to be had."""
    try:
        transport = app.connection_for_read().get_transport_cls()
    except (ImportError, KeyError, ValueError):  # no such library, transport, port: say so later
        return (in_one(app.conf.broker_read_url or app.conf.broker_url) or "").partition(":")[0]
    streams = transport.driver_name == "redis-streams"
    return "redis-streams" if streams else str(transport.driver_type)


def _visibility_option(app: Any, default: float) -> float:
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout", default))


def window_of(task: Any, visibility_timeout_s: float) -> RetryWindow:
    """The task's retry window, from its own options: the longer one, where its automatic retries
    (``retry_kwargs``) and those that its body asks for are not alike."""
    policies = retry_policies(task, visibility_timeout_s)
    return longest_window(retry_window(it) for it in policies)


def longest_window(windows: Iterable[RetryWindow]) -> RetryWindow:
    """Of those without end, the one with the longest pause."""
    return max(windows, key=lambda it: (it.total_s, least_retention(it)))


def retry_policies(task: Any, visibility_timeout_s: float) -> tuple[RetryPolicy, RetryPolicy]:
    """By which the body's own ``self.retry()`` goes, and by which automatic retries go.

    A backoff is of automatic retries alone (Celery 5.7, ``celery/app/autoretry.py``, which also
    makes a whole number of its factor). Where a task has those, its body is taken to leave
    retries to them. Where it has none, the second is what a body goes by that works its
    countdowns out of these options (``get_exponential_backoff_interval(self.retry_backoff, …)``).
    """
    automatic = bool(getattr(task, "autoretry_for", ()))
    backoff = getattr(task, "retry_backoff", False)
    factor = float(int(max(1.0, float(backoff)))) if backoff else 0.0
    asked = RetryPolicy(
        task_name=task.name,
        max_retries=task.max_retries,
        delay_s=float(task.default_retry_delay or 0),
        backoff=factor if automatic else 0.0,
        backoff_max_s=float(int(getattr(task, "retry_backoff_max", 600))),
        redelivery_s=visibility_timeout_s,
        run_s=hard_limit_s(task) or 0.0,
    )
    own = _retry_kwargs(task)
    return asked, replace(
        asked,
        backoff=factor,
        max_retries=_either(own.get("max_retries"), asked.max_retries),
        delay_s=float(_either(own.get("countdown"), asked.delay_s)),
    )


def most_retries(task: Any) -> int | None:
    """How often the task is retried; ``None``: without end."""
    most: int | None = _either(_retry_kwargs(task).get("max_retries"), task.max_retries)
    return most


def _retry_kwargs(task: Any) -> Mapping[str, Any]:
    """What ``autoretry_for`` gives to ``retry``."""
    if not getattr(task, "autoretry_for", ()):
        return {}
    return getattr(task, "retry_kwargs", None) or {}


def hard_limit_s(task: Any) -> float | None:
    """After how many seconds a run is killed: the task's ``time_limit``, else the app's
    ``task_time_limit`` (which Celery before 5.7 does not put into the task)."""
    limit = task.time_limit or task.app.conf.task_time_limit
    return float(limit) if limit else None


def given_function(task: Any, option: str) -> Any:
    """The option as it was written: a plain function stays one, although it is a class attribute.

    ``idem_key=lambda order_id: …`` takes the call's arguments; a method of a class-based task
    (first parameter ``self``) takes the task before them.
    """
    raw = inspect.getattr_static(task, option, None)
    if isinstance(raw, staticmethod):
        return raw.__func__
    if isinstance(raw, classmethod):
        return getattr(task, option)
    if inspect.isfunction(raw):
        first = next(iter(inspect.signature(raw).parameters), "")
        return getattr(task, option) if first == "self" else raw
    return getattr(task, option)


def _check_body(task: Any) -> None:
    """Who calls bodies by a ``__call__`` of their own may know how to run what is not plain."""
    ours = ("celery.", "celery_idem.")
    if any("__call__" in vars(it) and not it.__module__.startswith(ours) for it in task.__mro__):
        return
    if kind := keys.no_plain_function(task.run):
        raise ConfigError(
            f"{task.name}: the body is {kind}, and Celery only calls it: nothing of it would run. "
            "Make it a plain function (asyncio.run inside it, where you must)"
        )


def _check_key_function(task_name: str, function: Any) -> None:
    if not callable(function):
        raise ConfigError(
            f"{task_name}: idem_key must be a template or a callable, not {function!r}"
        )
    unstable = keys.unstable_names(function)
    if unstable:
        raise ConfigError(
            f"{task_name}: idem_key uses {', '.join(unstable)}: a key made of a clock or a random "
            "value differs on every retry; make it of the arguments"
        )


def _key_of(
    task: Any, signature: inspect.Signature
) -> Callable[[str, Sequence[Any], Mapping[str, Any]], str]:
    given, name = given_function(task, "idem_key"), task.name
    if given is None:
        return lambda task_id, args, kwargs: task_id
    if isinstance(given, str):
        template = keys.parse_template(given, one_for_all=task.cooldown_s is not None)
        keys.check_names(template, signature, name)
        bind = keys.binder(signature)

        def from_template(task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
            return keys.check_key(template.fill(bind(args, kwargs)), name)

        return from_template

    def from_function(task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        key = given(*args, **kwargs)
        if key != given(*args, **kwargs):
            raise KeyInvalid(
                f"{name}: idem_key gave two different keys for one call; it must be made of the "
                "arguments alone"
            )
        return keys.check_key(key, name)

    return from_function


def _fingerprint_of(
    task: Any, signature: inspect.Signature
) -> Callable[[Sequence[Any], Mapping[str, Any]], str]:
    given = given_function(task, "fingerprint")
    if given is False or given is None:
        return lambda args, kwargs: ""
    bind = keys.binder(signature)
    if given is True:
        said = keys.said(signature)
        return lambda args, kwargs: keys.fingerprint(said(bind(args, kwargs)))
    if callable(given):
        return lambda args, kwargs: keys.fingerprint(given(*args, **kwargs))
    names = (given,) if isinstance(given, str) else tuple(given)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in names:
        if name not in signature.parameters and not takes_any:
            raise ConfigError(
                f"{task.name}: fingerprint names {name!r}, which the task doesn't take; it takes "
                f"{', '.join(signature.parameters) or 'nothing'}"
            )

    def of_names(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        arguments = bind(args, kwargs)
        return keys.fingerprint({name: arguments.get(name) for name in names})

    return of_names


def _either(own: Any, general: Any) -> Any:
    return general if own is None else own
