"""The project under examination: its app, settings, tasks and broker, as far as nobody is asked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from kombu.transport import redis as kombu_redis

from celery_idem.binding import binding_of, in_one
from celery_idem.core.errors import ConfigError, IdemError
from celery_idem.core.settings import Settings
from celery_idem.core.url import why_unreadable, without_password
from celery_idem.doctor.finding import Place
from celery_idem.doctor.fleet import PATIENCE_S
from celery_idem.doctor.loading import Broken, load_tasks
from celery_idem.doctor.servers import Servers
from celery_idem.doctor.source.effects import Traced, trace
from celery_idem.doctor.source.module import Module
from celery_idem.doctor.source.names import names_in
from celery_idem.doctor.source.reader import Reader
from celery_idem.lanes.consumer import LaneStep
from celery_idem.options import hard_limit_s, redelivery_s, visibility_timeout_s
from celery_idem.stores.base import Store
from celery_idem.task import IdempotentTask
from celery_idem.transport.transport import Transport as StreamsTransport


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task of the project, with the app's settings already in it."""

    task: Any
    place: Place | None  #: where its function is defined, if that can be read

    @property
    def name(self) -> str:
        return str(self.task.name)

    @property
    def idempotent(self) -> bool:
        return isinstance(self.task, IdempotentTask)

    @property
    def acks_late(self) -> bool:
        return bool(self.task.acks_late)

    @property
    def time_limit_s(self) -> float | None:
        """The hard limit of a run, its own or the app's."""
        return hard_limit_s(self.task)


class Project:
    """What checks look at. Loading it imports the app's task modules, as a worker does; nothing
    else of the project is run."""

    def __init__(
        self, app: Any, *, rabbitmq_api: str | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self.app = app._get_current_object() if hasattr(app, "_get_current_object") else app
        self.reader = Reader()
        self.servers = Servers(self, rabbitmq_api=rabbitmq_api, patience_s=patience_s)
        self._effects: dict[str, Traced] = {}
        self.broken: list[Broken] = load_tasks(self.app)

    @cached_property
    def tasks(self) -> list[TaskFacts]:
        """All tasks but Celery's own and those that could not be bound, by name."""
        broken = {it.name for it in self.broken}
        return [
            TaskFacts(task, self.reader.place_of_task(task))
            for name, task in sorted(self.app.tasks.items())
            if not name.startswith("celery.") and name not in broken
        ]

    @property
    def idempotent_tasks(self) -> list[TaskFacts]:
        return [it for it in self.tasks if it.idempotent]

    @property
    def plain_tasks(self) -> list[TaskFacts]:
        return [it for it in self.tasks if not it.idempotent]

    @cached_property
    def settings(self) -> Settings:
        """``app.conf.idem``; the defaults where it can't be read, which is a finding (IDEM001)."""
        given = self.settings_or_error
        return given if isinstance(given, Settings) else Settings()

    @cached_property
    def settings_or_error(self) -> Settings | Exception:
        try:
            return binding_of(self.app).settings
        except (ConfigError, TypeError) as error:
            return error

    # -- the broker

    @cached_property
    def broker_url(self) -> str:
        """Where workers read from, with its password."""
        conf = self.app.conf
        return in_one(conf.broker_read_url or conf.broker_url) or ""

    @cached_property
    def broker(self) -> str:
        """``redis``, ``redis-streams``, ``amqp``, ``sqs``, ``memory``, …: who carries messages."""
        try:
            transport = self.app.connection_for_read().get_transport_cls()
        except ImportError:  # its client library is not installed here
            return urlsplit(self.broker_url).scheme
        except ValueError as error:  # a port that is no number: half of a password, maybe
            shown, why = without_password(self.broker_url), why_unreadable(self.broker_url, error)
            raise ConfigError(f"the broker's URL {shown!r} can't be read: {why}") from error
        if issubclass(transport, StreamsTransport):
            return "redis-streams"
        if issubclass(transport, kombu_redis.Transport):
            return "redis"
        return str(transport.driver_type)

    @property
    def transport_options(self) -> dict[str, Any]:
        return dict(self.app.conf.broker_transport_options or {})

    @property
    def kept(self) -> bool:
        """Whether the visibility keeper looks after every message that this app's workers hold."""
        return (
            self.broker == "redis"
            and self.settings.visibility_keeper
            and "celery_idem.visibility.step:VisibilityStep" in self._consumer_steps
        )

    @cached_property
    def visibility_timeout_s(self) -> float | None:
        """After which the broker gives a message that is not acked to another worker; None where
        it has no such timeout."""
        return visibility_timeout_s(self.app)

    @cached_property
    def redelivery_s(self) -> float:
        """How long a redelivery takes in retry windows, as a worker that starts takes it."""
        return redelivery_s(self.app)

    def effects_of(self, facts: TaskFacts) -> Traced:
        """What the task's body does to the world, as far as its source tells."""
        if facts.name not in self._effects:
            source = self.reader.source_of_task(facts.task)
            self._effects[facts.name] = (
                Traced()
                if source is None
                else trace(
                    names_in(self.reader, source.module, source.function, source.owner),
                    source.function,
                )
            )
        return self._effects[facts.name]

    @property
    def serves_lanes(self) -> bool:
        """Whether this app's workers know lanes."""
        return f"{LaneStep.__module__}:{LaneStep.__qualname__}" in self._consumer_steps

    @cached_property
    def files(self) -> list[Module]:
        """The source files of the project: the packages that its tasks are in."""
        paths = {it.place.path for it in self.tasks if it.place}
        return self.reader.neighbours(paths)

    @property
    def store(self) -> Store | None:
        """The store, opened and not connected; None where none can be chosen."""
        found = self._store_or_error
        return None if isinstance(found, IdemError) else found

    @property
    def store_error(self) -> IdemError | None:
        """Why no store can be chosen, where that is so."""
        found = self._store_or_error
        return found if isinstance(found, IdemError) else None

    @cached_property
    def _store_or_error(self) -> Store | IdemError:
        try:
            return binding_of(self.app).store
        except IdemError as error:
            return error

    @property
    def _consumer_steps(self) -> set[str]:
        return {
            step if isinstance(step, str) else f"{step.__module__}:{step.__qualname__}"
            for step in self.app.steps["consumer"]
        }
