# ruff: noqa
"""Tasks over a service layer: typed, small objects, everything injected or built by factories."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import functools
import logging
import typing as t

import httpx
import requests
from celery import Celery, Task
from pydantic import BaseModel
from redis import Redis

from celery_idem import AlreadyProcessed, IdempotentTask, idempotent

celery = app = Celery("tickets")
app.conf.broker_url = "redis://localhost:1/0"
app.conf.result_backend = "redis://localhost:1/1"
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.task_time_limit = 120

log = logging.getLogger(__name__)


class State(enum.Enum):
    NEW = "new"
    CONFIRMED = "confirmed"


class Ticket(BaseModel):
    id: int
    state: State
    seats: list[str]


@dataclasses.dataclass
class Gateway:
    base: str
    http: httpx.Client

    def capture(self, ticket: Ticket) -> str:
        response = self.http.post(
            f"{self.base}/captures",
            json={"ticket": ticket.id},
            headers={"Idempotency-Key": f"ticket-{ticket.id}"},
        )
        response.raise_for_status()
        return response.json()["id"]

    def seats(self, hall: str) -> list[str]:
        return self.http.get(f"{self.base}/halls/{hall}/seats").json()


@functools.lru_cache
def gateway() -> Gateway:
    return Gateway("https://pay.example", httpx.Client(timeout=10))


def redis() -> Redis:
    return Redis.from_url("redis://localhost:1/3")


@contextlib.contextmanager
def unit_of_work() -> t.Iterator[t.Any]:
    from tickets.db import Session

    with Session.begin() as session:
        yield session


class Repository:
    def __init__(self, session: t.Any) -> None:
        self.session = session

    def get(self, ticket_id: int) -> Ticket:
        return self.session.get(Ticket, ticket_id)

    def save(self, ticket: Ticket) -> None:
        self.session.merge(ticket)


@app.task(bind=True, pydantic=False, autoretry_for=(httpx.TransportError,), max_retries=5)
def capture(self: Task, ticket_id: int) -> str:
    with unit_of_work() as session:
        ticket = Repository(session).get(ticket_id)
    return gateway().capture(ticket)


@app.task
def confirm(ticket_id: int) -> None:
    with unit_of_work() as session:
        repository = Repository(session)
        ticket = repository.get(ticket_id)
        ticket.state = State.CONFIRMED
        repository.save(ticket)


@app.task(base=IdempotentTask, idem_key="refund:{ticket_id}", max_retries=6, retry_backoff=True)
def refund(ticket_id: int, reason: str = "") -> None:
    requests.post("https://pay.example/refunds", json={"ticket": ticket_id, "why": reason})


@app.task
def free_seats(hall: str) -> int:
    left = gateway().seats(hall)
    redis().set(f"hall:{hall}:left", len(left), ex=60)
    return len(left)


@app.task
def hold(hall: str, seat: str, until: float) -> bool:
    # SET NX is the effect here: whoever has the seat keeps it until it is over
    return bool(redis().set(f"hold:{hall}:{seat}", until, nx=True, exat=int(until)))


@app.task
def release_holds(hall: str) -> int:
    store, now = redis(), dt.datetime.now(dt.timezone.utc).timestamp()
    gone = [key for key in store.scan_iter(f"hold:{hall}:*") if float(store.get(key) or 0) < now]
    return store.delete(*gone) if gone else 0


@app.task(bind=True, max_retries=3)
def poll_capture(self: Task, capture_id: str) -> str:
    answer = httpx.get(f"https://pay.example/captures/{capture_id}")
    match answer.json()["status"]:
        case "pending":
            raise self.retry(countdown=min(2**self.request.retries, 60))
        case "failed":
            refund.delay(int(capture_id))
            return "failed"
        case status:
            return status


@app.task
def once_a_day(hall: str, day: str) -> str:
    try:
        with idempotent(f"close:{hall}:{day}", ttl=7 * 86400):
            requests.post(f"https://halls.example/{hall}/close")
            return "closed"
    except AlreadyProcessed:
        return "was closed"


@app.task
def price(seats: list[str]) -> dict[str, int]:
    response = httpx.post("https://prices.example/v2/quote", json={"seats": seats})
    return {row["seat"]: row["cents"] for row in response.json()}


@app.task
def print_ticket(ticket_id: int) -> str:
    from reportlab.pdfgen.canvas import Canvas

    path = f"/var/tickets/{ticket_id}.pdf"
    canvas = Canvas(path)
    canvas.drawString(100, 100, str(ticket_id))
    canvas.save()
    return path


@app.task
def sum_up(day: str) -> None:
    total = 0
    with unit_of_work() as session:
        for ticket in session.query(Ticket):
            total += len(ticket.seats)
        session.execute(
            "INSERT INTO days (day, seats) VALUES (:d, :n) "
            "ON CONFLICT (day) DO UPDATE SET seats = excluded.seats",
            {"d": day, "n": total},
        )


@app.task
def webhook_out(event_id: str, url: str, body: dict[str, t.Any]) -> int:
    delivered = redis().get(f"event:{event_id}:delivered")
    if delivered:
        return int(delivered)
    response = requests.post(url, json=body, headers={"X-Event": event_id}, timeout=5)
    redis().set(f"event:{event_id}:delivered", response.status_code, ex=86400)
    return response.status_code


@app.task
def push_inventory(hall: str) -> None:
    requests.put(f"https://partners.example/halls/{hall}", json=gateway().seats(hall), timeout=10)


@app.task(base=IdempotentTask, bind=True, idem_key="tour:{tour_id}")
def announce(self: t.Any, tour_id: int, cities: list[str]) -> None:
    step = self.step
    for city in cities:
        step(f"post:{city}", _post, tour_id, city)


def _post(tour_id: int, city: str) -> None:
    httpx.post("https://social.example/posts", json={"tour": tour_id, "city": city})


@app.task
def tell_twice(ticket_id: int) -> None:
    requests.post("https://sms.example/send", json={"ticket": ticket_id})  # expect: IDEM051


@app.task
def loyalty(user_id: int, points: int) -> None:
    redis().incrby(f"loyalty:{user_id}", points)  # expect: IDEM053


@app.task
def fetch_all(halls: list[str]) -> None:
    for hall in halls:
        free_seats.apply_async((hall,), countdown=5, expires=60)


@app.task
def archive(ticket_id: int) -> None:
    with unit_of_work() as session:
        ticket = Repository(session).get(ticket_id)
        session.execute("DELETE FROM tickets WHERE id = :id", {"id": ticket_id})
    log.info("archived", extra={"ticket": ticket_id, "seats": len(ticket.seats)})


@app.task(bind=True)
def report(self: Task, started: str) -> dict[str, t.Any]:
    took = dt.datetime.now() - dt.datetime.fromisoformat(started)
    return {"id": self.request.id, "seconds": took.total_seconds()}
