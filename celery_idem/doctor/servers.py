"""What only servers and workers can tell. Each is asked once; no answer is no finding, but said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kombu.exceptions import KombuError
from kombu.transport import redis as kombu_redis
from redis import Redis, RedisError

from celery_idem.core.errors import IdemError
from celery_idem.core.url import without_password
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.redis.store import RedisLetterStore
from celery_idem.doctor.finding import NotChecked
from celery_idem.doctor.fleet import Fleet, ask_fleet
from celery_idem.doctor.rabbitmq import RabbitFacts, ask_rabbitmq
from celery_idem.stores.redis.connection import CONNECT_TIMEOUT_S
from celery_idem.stores.redis.durability import Durability, durability_of
from celery_idem.stores.redis.store import RedisStore

if TYPE_CHECKING:
    from celery_idem.doctor.project import Project

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """One Redis server, and what the project keeps on it."""

    holds: tuple[str, ...]  #: of "messages", "records", "dead letters"
    where: str  #: its URL, without the password
    durability: Durability

    @property
    def held(self) -> str:
        return " and ".join(self.holds)


class Servers:
    """Answers of the project's servers. All raise :class:`NotChecked` where none is given."""

    def __init__(self, project: Project, *, rabbitmq_api: str | None, patience_s: float) -> None:
        self._project = project
        self._rabbitmq_api = rabbitmq_api
        self._patience_s = patience_s
        self._answers: dict[str, Any] = {}

    @property
    def redis(self) -> list[RedisFacts]:
        """The Redis servers on which messages, records and dead letters are."""
        return self._once("redis", self._ask_redis)

    @property
    def rabbitmq(self) -> RabbitFacts:
        """The RabbitMQ that carries the messages."""
        return self._once("rabbitmq", self._ask_rabbitmq)

    @property
    def fleet(self) -> Fleet:
        """The workers that listen on the project's broker, of other apps, too."""
        return self._once("fleet", self._ask_fleet)

    def _once(self, name: str, ask: Callable[[], T]) -> T:
        if name not in self._answers:
            try:
                self._answers[name] = ask()
            except NotChecked as reason:
                self._answers[name] = reason
        answer = self._answers[name]
        if isinstance(answer, NotChecked):
            raise answer
        return answer  # type: ignore[no-any-return]

    def _ask_redis(self) -> list[RedisFacts]:
        found: dict[str, tuple[list[str], str, Durability]] = {}
        for what, where, client in self._redis_clients():
            try:
                run_id = str(client.info("server").get("run_id", where))
                _, _, durability = found.get(run_id) or ([], where, durability_of(client))
            except RedisError as error:
                raise NotChecked(f"the Redis with the {what} at {where}: {error}") from error
            found.setdefault(run_id, ([], where, durability))[0].append(what)
        return [RedisFacts(tuple(what), where, it) for what, where, it in found.values()]

    def _redis_clients(self) -> Iterator[tuple[str, str, Redis]]:
        project = self._project
        if project.broker in ("redis", "redis-streams"):
            with self._connection() as connection:
                yield "messages", without_password(project.broker_url), _client_of(connection)
        if not project.idempotent_tasks:
            return
        store = project.store
        if isinstance(store, RedisStore):
            yield "records", _place(store.client), store.client
        letters = self._letters()
        if isinstance(letters, RedisLetterStore):
            yield "dead letters", _place(letters.client), letters.client

    def _letters(self) -> Any:
        try:
            return letters_of(self._project.app)
        except (IdemError, ImportError):
            return None  # a finding of its own

    def _ask_rabbitmq(self) -> RabbitFacts:
        with self._connection() as connection:
            return ask_rabbitmq(connection, self._rabbitmq_api)

    def _ask_fleet(self) -> Fleet:
        with self._connection():
            pass  # a broker that does not answer is no fleet without workers
        return ask_fleet(self._project.app, self._patience_s)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """An open connection to the broker. Raises :class:`NotChecked` where there is none."""
        where = without_password(self._project.broker_url)
        connection = self._project.app.connection_for_read()
        connection.connect_timeout = CONNECT_TIMEOUT_S
        try:
            try:
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=1)
            except (KombuError, OSError, RedisError) as error:
                raise NotChecked(f"the broker at {where} does not answer: {error}") from error
            yield connection
        finally:
            connection.release()


def broker_durability(app: Any) -> Durability | None:
    """How durable the messages of an app on kombu's Redis transport are, for a worker that starts;
    None on other brokers. Raises what redis-py and kombu raise when nobody answers."""
    with app.connection_for_read() as connection:
        transport = connection.get_transport_cls()
        if not issubclass(transport, kombu_redis.Transport) or transport.driver_name != "redis":
            return None
        return durability_of(_client_of(connection))


def _client_of(connection: Any) -> Redis:
    channel = connection.default_channel
    client: Redis = getattr(channel, "raw", None) or channel.client
    return client


def _place(client: Redis) -> str:
    given = client.connection_pool.connection_kwargs
    if "path" in given:
        return str(given["path"])
    return f"redis://{given.get('host', '?')}:{given.get('port', '?')}/{given.get('db', 0)}"
