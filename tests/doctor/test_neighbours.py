"""Projects of several files: what stands in one is understood from the others. Nothing is run."""

from __future__ import annotations

import pytest

from tests.doctor.bodies import SOURCE_CHECKS, packages

__all__ = ["packages"]  # fixture
pytestmark = pytest.mark.usefixtures("packages")

SERVICES = """
import uuid, requests
from celery_idem import idempotent

def _charge(order):
    requests.post("https://pay.example/charges", json={"order": order})

def _mail(order):
    requests.post("https://mail.example/messages", json={"order": order})

def complete(order):
    _charge(order)
    _mail(order)

def _key(order):
    return f"{order}:{uuid.uuid4()}"

def close(order):
    with idempotent(_key(order)):
        pass
"""
COMPLETES = """
{imported}

@app.task(base=IdempotentTask, idem_key="{{order}}")
def job(order):
    complete(order)
"""


@pytest.mark.parametrize(
    "imported", ["from shop.services import complete", "from .services import complete"]
)
def test_a_full_check_and_a_chosen_one_say_the_same(shop, imported):
    examined = shop(COMPLETES.format(imported=imported), services=SERVICES)

    full = examined.found()

    assert ("IDEM052", "job") in full
    for check in SOURCE_CHECKS:
        assert [it for it in full if it[0] == check] == examined.found(check)


def test_relative_imports_of_a_neighbour_are_followed(shop):
    pay = "import requests\n\ndef charge(order):\n    requests.post('https://pay.example')\n"
    services = SERVICES.replace("def _charge(", "from .pay import charge as _charge\ndef _other(")
    examined = shop(
        COMPLETES.format(imported="from shop.services import complete"), services=services, pay=pay
    )

    assert ("IDEM052", "job") in examined.found("IDEM050", "IDEM052")


@pytest.mark.parametrize("loaded", [True, False])
def test_a_key_function_of_a_neighbour_is_read_loaded_or_not(shop, loaded):
    imported = "from shop.services import complete" if loaded else "complete = print"
    examined = shop(COMPLETES.format(imported=imported), services=SERVICES)

    (found,) = examined.report("IDEM050").found

    assert found.finding.value == "uuid.uuid4"
    assert found.finding.place is not None
    assert found.finding.place.path.endswith("services.py")


def test_what_a_body_imports_when_it_runs_is_followed(shop):
    lazy = COMPLETES.format(imported="").replace(
        "    complete(order)", "    from shop.services import complete\n    complete(order)"
    )
    examined = shop(lazy, services=SERVICES)

    assert examined.found("IDEM052") == [("IDEM052", "job")]
    assert ("IDEM052", "job") in examined.found()


CLIENTS = """
import requests, redis

def connect():
    return redis.Redis()

session = requests.Session()
rds = connect()
"""
IMPORTED = [
    ("from shop.clients import session, rds", "session", "rds"),
    ("from .clients import session as http, rds as cache", "http", "cache"),
    ("from shop import clients", "clients.session", "clients.rds"),
    ("import shop.clients", "shop.clients.session", "shop.clients.rds"),
    ("from shop.passed_on import session, r", "session", "r"),
]


@pytest.mark.parametrize(("imported", "session", "rds"), IMPORTED)
@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("{session}.post('https://x/orders')", ["IDEM051"]),
        ("{session}.get('https://x/orders')", []),
        ("{rds}.incr('orders')", ["IDEM053"]),
        ("if not {rds}.set(order, 1, nx=True, ex=86400):\n        return", ["IDEM055"]),
        (
            "{session}.post('https://x')\n    if not {rds}.set(order, 1, nx=True):\n        return",
            ["IDEM051", "IDEM054", "IDEM055"],
        ),
    ],
)  # fmt: skip
def test_a_client_that_modules_share_is_known(shop, imported, session, rds, body, found):
    passed_on = "from shop.clients import session, rds\n\nr = rds\n"
    body = body.format(session=session, rds=rds)
    examined = shop(
        f"{imported}\n\n@app.task(acks_late=True)\ndef job(order):\n    {body}\n",
        clients=CLIENTS,
        passed_on=passed_on,
    )

    assert [check for check, _ in examined.found(*SOURCE_CHECKS)] == found


def test_modules_that_import_one_name_of_each_other_end(shop):
    examined = shop(
        "@app.task(acks_late=True)\ndef job(order):\n    from shop.one import session\n"
        "    session.post(order)\n",
        one="from shop.two import session\n",
        two="from shop.one import session\n",
    )

    assert examined.found(*SOURCE_CHECKS) == []


@pytest.mark.parametrize("popped", ["r.zpopmin('jobs')", "r.zmpop(1, ['jobs'], min=True)"])
def test_a_producer_and_a_worker_of_one_queue_may_stand_apart(shop, popped):
    """S-P4, in a producer that is not loaded and names no pop."""
    examined = shop(
        f"from shop.clients import rds as r\n\n@app.task\ndef work():\n    return {popped}\n",
        clients=CLIENTS,
        producer="from shop.clients import rds\n\n"
        "def put(job, priority):\n    rds.zadd('jobs', {job: priority})\n",
    )

    (found,) = examined.report("IDEM056").found

    assert found.finding.place is not None
    assert found.finding.place.path.endswith("producer.py")
