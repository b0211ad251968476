"""IDEM020 and IDEM050 to IDEM055: what the source of a task says. Nothing of it is run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.doctor.absent import stand_ins

IMPORTS = """
import requests, httpx, stripe, smtplib, redis, uuid, time, random, datetime, hashlib
from django.core.mail import send_mail, EmailMessage
from django.core.cache import cache
from django.db.models import F
from django.db import transaction
from celery_idem import idempotent

r = redis.Redis()
session = requests.Session()
"""


@pytest.fixture(autouse=True)
def _packages() -> Iterator[None]:
    pytest.importorskip("django")
    with stand_ins():
        yield


@pytest.fixture
def body(project: Callable[..., Any]) -> Callable[..., list[str]]:
    """``body(source, decorator)``: the ids that a task with this body gets, and their lines."""

    def found(source: str, decorator: str = "@app.task(acks_late=True)", rest: str = "") -> Any:
        text = textwrap.indent(textwrap.dedent(source).strip(), "    ")
        helpers = textwrap.dedent(rest)
        examined = project(f"{IMPORTS}\n{helpers}\n{decorator}\ndef job(self, order, n):\n{text}\n")
        return [it.check.id for it in examined.report(*SOURCE_CHECKS).found]

    return found


SOURCE_CHECKS = ("IDEM020", "IDEM050", "IDEM051", "IDEM052", "IDEM053", "IDEM054", "IDEM055")
LATE = "@app.task(acks_late=True)"
IDEMPOTENT = "@app.task(base=IdempotentTask, bind=True, idem_key='{order}')"


@pytest.mark.parametrize(
    "effect",
    [
        "requests.post('https://x/orders')",
        "session.post('https://x/orders', json={'order': order})",
        "requests.request('POST', 'https://x/orders')",
        "httpx.patch('https://x/orders')",
        "with httpx.Client() as client:\n    client.post('https://x/orders')",
        "client = httpx.Client(timeout=5)\nclient.post('https://x/orders')",
        "send_mail('s', 'b', None, ['to'])",
        "EmailMessage('s').send()",
        "message = EmailMessage('s')\nmessage.send()",
        "stripe.Charge.create(amount=n)",
        "server = smtplib.SMTP('x')\nserver.send_message(order)",
        "for one in order:\n    requests.post('https://x/orders')",
        "if order:\n    requests.post('https://x/orders')",
        "if not order.email:\n    return\nsend_mail('s', 'b', None, [order.email])",
        "try:\n    requests.post('https://x/orders')\nexcept OSError:\n    pass",
        "return requests.post('https://x/orders').json()",
        "transaction.on_commit(lambda: send_mail('s', 'b', None, []))",
    ],
)
def test_an_effect_of_a_late_ack_task_without_a_key_is_found(body, effect):
    assert body(effect) == ["IDEM051"]


@pytest.mark.parametrize(
    "harmless",
    [
        "requests.get('https://x/orders')",
        "requests.put('https://x/orders/1', json={})",
        "requests.delete('https://x/orders/1')",
        "requests.request('GET', 'https://x/orders')",
        "requests.post('https://x/oauth/token')",
        "requests.post(f'{order.host}/search', json={})",
        "url = 'https://x/graphql'\nrequests.post(url, json={})",
        "requests.post('https://x', headers={'Idempotency-Key': order})",
        "headers = {'Idempotency-Key': order}\nrequests.post('https://x', headers=headers)",
        "stripe.Charge.create(amount=n, idempotency_key=order)",
        "stripe.Charge.retrieve(order)",
        "order.post('x')",
        "order.client.send_mail('x')",
        "send = lambda: requests.post('https://x')",
        "with idempotent(f'order:{order}'):\n    requests.post('https://x')",
        "if order.sent_at:\n    return\nrequests.post('https://x')",
        "if order.status == 'open':\n    requests.post('https://x')",
        "item, created = Order.objects.get_or_create(id=order)\nif not created:\n    return\n"
        "requests.post('https://x')",
        "with transaction.atomic():\n    if order.paid:\n        return\nrequests.post('https://x')",
        "requests.post.delay('https://x')",
        "class post:\n    def f(self):\n        requests.post('https://x')",
    ],
)  # fmt: skip
def test_what_is_the_same_when_done_twice_is_not_found(body, harmless):
    assert body(harmless) == []


def test_an_effect_in_a_function_that_is_called_is_found_where_it_stands(project):
    examined = project(
        IMPORTS
        + """
def tell(order):
    deeper(order)

def deeper(order):
    requests.post("https://x")  # here

@app.task(acks_late=True)
def job(order):
    tell(order)
"""
    )

    (found,) = examined.report(*SOURCE_CHECKS).found

    assert found.finding.message.startswith("requests.post in deeper is done again")
    assert found.finding.place is not None
    assert found.finding.place.line == examined.line_of("# here")


def test_functions_that_call_each_other_end(body):
    rest = """
    def ping(n):
        return pong(n)

    def pong(n):
        return ping(n)
    """

    assert body("ping(n)", rest=rest) == []


def test_methods_and_clients_of_a_class_task_are_followed(project):
    examined = project(
        IMPORTS
        + """
class Base(app.Task):
    abstract = True
    acks_late = True

    @property
    def http(self):
        return requests.Session()

class Tell(Base):
    name = "tell"

    def run(self, order):
        self._send(order)

    def _send(self, order):
        self.http.post("https://x/orders")

class Read(Base):
    name = "read"

    def run(self, order):
        return self.http.get("https://x/orders").json()

app.register_task(Tell())
app.register_task(Read())
"""
    )

    assert examined.found(*SOURCE_CHECKS) == [("IDEM051", "tell")]


def test_an_effect_of_an_early_ack_task_may_be_lost(body):
    assert body("requests.post('https://x')", "@app.task") == ["IDEM020"]
    assert body("requests.get('https://x')", "@app.task") == []


# -- several effects under one key


@pytest.mark.parametrize(
    "several",
    [
        "send_mail('s', 'b', None, [])\nrequests.post('https://x')",
        "for to in order:\n    send_mail('s', 'b', None, [to])",
        "[send_mail('s', 'b', None, [to]) for to in order]",
        "if order:\n    requests.post('https://x')\nrequests.post('https://y')",
        "tell()\ntell()",
        "self.step('mail', send_mail, order)\nrequests.post('https://x')\ntell()",
    ],
)
def test_several_effects_under_one_key_are_found_s_s1_c12(body, several):
    """S-S1: one key for the whole job is wrong. C12: a half-done batch is redone from the start."""
    rest = "def tell():\n    requests.post('https://x')\n"

    assert body(several, IDEMPOTENT, rest) == ["IDEM052"]


@pytest.mark.parametrize(
    "right",
    [
        "requests.post('https://x')",
        "self.step('mail', send_mail, order)\nself.step('tell', tell)",
        "self.step('mail', lambda: send_mail('s', 'b', None, []))\nself.step('tell', tell)",
        "self.step('mail', send_mail, order)\ntell()",
        "if order:\n    requests.post('https://x')\nelse:\n    requests.post('https://y')",
        "if order:\n    tell()\n    return\ntell()",
        "try:\n    tell()\nexcept OSError:\n    requests.post('https://fallback')",
        "for to in order:\n    self.step(f'mail:{to}', send_mail, to)",
        "stripe.Charge.create(idempotency_key=self.step.key('a'))\ntell()",
        "match order:\n    case 1:\n        tell()\n    case _:\n        tell()",
        "tell()\nr.incr('orders')",
    ],
)
def test_one_effect_or_steps_are_right(body, right):
    rest = "def tell():\n    requests.post('https://x')\n"

    assert body(right, IDEMPOTENT, rest) == []


# -- increments


@pytest.mark.parametrize(
    "growth",
    [
        "r.incr('orders')",
        "redis.Redis.from_url('redis://x').hincrby('orders', 'n', 1)",
        "pipe = r.pipeline()\npipe.rpush('log', n)\npipe.execute()",
        "cache.incr('orders')",
        "Account.objects.filter(id=n).update(balance=F('balance') - n)",
        "account = order.account\naccount.balance -= n\naccount.save()",
        "account = order.account\naccount.balance = F('balance') + n\naccount.save()",
        "order.execute('UPDATE accounts SET balance = balance - %s WHERE id = 1', [n])",
    ],
)
def test_an_increment_of_a_late_ack_task_is_found_s_i8(body, growth):
    """S-I8: increment and append are guarded by a key."""
    assert body(growth) == ["IDEM053"]


@pytest.mark.parametrize(
    "harmless",
    [
        "r.set('orders', n)",
        "r.incr(f'rate:{order}')",
        "statsd.incr('orders')",
        "Account.objects.filter(id=n).update(balance=n)",
        "order.attempts += 1\norder.save()",
        "total = 0\nfor x in order:\n    total += x\nreturn total",
        "order.count += 1",
        "order.execute('UPDATE accounts SET balance = %s WHERE id = 1', [n])",
        "order.execute('SELECT a = a + 1')",
        "if order.processed:\n    return\nr.incr('orders')",
        "with idempotent(f'o:{order}'):\n    r.incr('orders')",
    ],
)
def test_absolute_values_and_counters_that_only_watch_are_not_found(body, harmless):
    assert body(harmless) == []


def test_an_increment_under_a_key_is_right(body):
    assert body("r.incr('orders')", IDEMPOTENT) == []


# -- claims by hand


def test_a_claim_after_the_effect_is_found_s_i1(body):
    """S-I1: claim before the effect."""
    late = "requests.post('https://x')\nif not r.set(order, 1, nx=True, ex=86400):\n    return\n"
    ours = "requests.post('https://x')\nwith idempotent(order):\n    r.set('done', 1)\n"

    assert "IDEM054" in body(late, "@app.task")
    assert "IDEM054" in body(ours, "@app.task")


@pytest.mark.parametrize(
    "right",
    [
        "with idempotent(order):\n    requests.post('https://x')",
        "requests.get('https://x')\nwith idempotent(order):\n    requests.post('https://x')",
        "with idempotent(order):\n    tell()\nwith idempotent(n):\n    tell()",
    ],
)
def test_a_claim_before_the_effect_is_right(body, right):
    rest = "def tell():\n    requests.post('https://x')\n"

    assert body(right, rest=rest) == []


KEPT = """
if not r.set(f"order:{order}", 1, nx=True, ex=86400):
    return
requests.post("https://x")
"""


def test_a_claim_that_a_failure_keeps_is_found_s_i4(body):
    """S-I4: a job that fails gives its key back, so that the retry runs."""
    by_cache = KEPT.replace('r.set(f"order:{order}", 1, nx=True, ex=86400)', "cache.add(order, 1)")
    by_name = 'claimed = r.setnx(order, 1)\nif not claimed:\n    return\nrequests.post("https://x")'

    assert body(KEPT) == body(by_cache) == body(by_name) == ["IDEM055"]
    assert "IDEM055" in body(KEPT, "@app.task(autoretry_for=(OSError,))")


def test_a_claim_that_is_given_back_or_kept_on_purpose_is_right(body):
    given_back = """
    if not r.set(order, 1, nx=True, ex=86400):
        return
    try:
        requests.post("https://x")
    except OSError:
        r.delete(order)
        raise
    """
    cool_down = 'if not cache.add(f"cooldown:{order}", 1, 86400):\n    return\nr.get("x")'
    short = "if not cache.add(order, 1, 60):\n    return\nr.get('x')"

    assert body(given_back) == []
    assert body(cool_down) == []
    assert body(short) == []
    assert "IDEM055" not in body(KEPT, "@app.task")  # it never runs again


# -- keys


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("f'order:{uuid.uuid4()}'", "uuid.uuid4"),
        ("str(time.time())", "time.time"),
        ("f'{order}:{random.random()}'", "random.random"),
        ("f'{order}:{datetime.date.today()}'", "datetime.date.today"),
        ("f'{order}:{datetime.datetime.now():%Y}'", "datetime.datetime.now"),
        ("str(hash(order))", "hash"),
        ("f'{order}:{self.request.retries}'", "self.request.retries"),
        ("made(order)", "uuid.uuid4"),
        ("made_before", "time.time_ns"),
    ],
)
def test_an_unstable_key_is_found_s_i2(project, key, what):
    """S-I2: the key is made from the payload, never from a clock or a random number."""
    for use in (
        f"with idempotent({key}):\n        pass",
        f"job.apply_async((1,), idem_key={key})",
        f"self.step('x', print, key={key})",
    ):
        examined = project(
            f"{IMPORTS}\ndef made(order):\n    token = uuid.uuid4()\n    return f'{{token}}'\n\n"
            f"@app.task(bind=True)\ndef job(self, order):\n"
            f"    made_before = str(time.time_ns())\n    {use}\n"
        )

        (found,) = examined.report("IDEM050").found

        assert found.finding.value == what
        assert found.finding.place is not None
        assert found.finding.place.line == examined.line_of(use.splitlines()[0].strip())


@pytest.mark.parametrize(
    "key",
    [
        "f'order:{order}'",
        "hashlib.sha256(order).hexdigest()",
        "str(uuid.uuid5(uuid.NAMESPACE_URL, order))",
        "f'{order.created:%Y-%m-%d}'",
        "self.request.id",
        "time.strftime('%Y', order.at)",
        "order.time",
        "made(order)",
    ],
)
def test_a_key_of_the_payload_is_right(project, key):
    examined = project(
        f"{IMPORTS}\ndef made(order):\n    began = time.monotonic()\n    return f'o:{{order}}'\n\n"
        f"@app.task(bind=True)\ndef job(self, order):\n"
        f"    with idempotent({key}):\n        nonce = uuid.uuid4()\n"
    )

    assert examined.found("IDEM050") == []


def test_the_key_of_a_class_task_is_read_too(project):
    examined = project(
        IMPORTS
        + """
def day():
    return datetime.date.today()

class Daily(IdempotentTask):
    name = "daily"

    def idem_key(self, order):
        return f"{order}:{day()}"

    def run(self, order): ...

app.register_task(Daily())
"""
    )

    assert [it.finding.value for it in examined.report("IDEM050").found] == ["datetime.date.today"]


def test_a_comment_at_the_call_silences_one_line_of_source(body):
    silenced = "requests.post('https://x')  # idem: ignore[IDEM051] asked twice is fine here"

    assert body(silenced) == []


def test_the_source_is_never_run(project, tmp_path):
    """Reading a task, its neighbours and what they import leaves no trace of theirs."""
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "never.py").write_text("raise AssertionError('imported')\n")
    examined = project(
        IMPORTS
        + """
def key_of(order):
    raise AssertionError("called")

@app.task(base=IdempotentTask, idem_key=key_of)
def job(order):
    raise AssertionError("called")
"""
    )

    assert examined.found(*SOURCE_CHECKS) == []
