"""IDEM020 and IDEM051 to IDEM053: what a task's source does to the world. Nothing of it is run."""

from __future__ import annotations

import pytest

from tests.doctor.bodies import IDEMPOTENT, IMPORTS, SOURCE_CHECKS, body, packages

__all__ = ["body", "packages"]  # fixtures
pytestmark = pytest.mark.usefixtures("packages")


@pytest.mark.parametrize(
    "effect",
    [
        "requests.post('https://x/orders')",
        "session.post('https://x/orders', json={'order': order})",
        "requests.request('POST', 'https://x/orders')",
        "requests.request(method='POST', url='https://x/orders')",
        "method = 'POST'\nsession.request(method, 'https://x/orders')",
        "requests.post('https://x/orders', {'token': order})",
        "httpx.patch('https://x/orders')",
        "with httpx.Client() as client:\n    client.post('https://x/orders')",
        "client = httpx.Client(timeout=5)\nclient.post('https://x/orders')",
        "http.client.HTTPConnection('x').request('POST', '/orders')",
        "urllib.request.urlopen('https://x/orders', data=b'1')",
        "urllib.request.urlopen(urllib.request.Request('https://x/orders', data=b'1'))",
        "q = urllib.request.Request('https://x', method='POST')\nurllib.request.urlopen(q)",
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
        "urllib.request.urlopen('https://x/orders')",
        "requests.delete('https://x/orders/1')",
        "requests.request('GET', 'https://x/orders')",
        "requests.request(method='PUT', url='https://x/orders')",
        "requests.request(method='POST', url='https://x/search')",
        "q = urllib.request.Request('https://x', data=b'', method='PUT')\n"
        "urllib.request.urlopen(q)",
        "requests.post('https://x/oauth/token')",
        "requests.request('POST', 'https://x/search', json={})",
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


# -- the answer of a call is no look at the state


@pytest.mark.parametrize(
    "looked",
    [
        "r = requests.get(order)\nif r.status_code != 200:\n    return",
        "r = requests.get(order)\ncode = r.status_code\nif code != 200:\n    return",
        "r = requests.get('https://x/status', params={'updated': n})\nif not r.ok:\n    return",
        "r = httpx.get(order)\nif r.is_error or r.status_code == 204:\n    return",
        "if requests.get('https://x/sent').status_code >= 400:\n    return",
        "with urllib.request.urlopen(order) as r:\n    pass\nif r.status != 200:\n    return",
        "r = fetch(order)\nif r.status_code != 200:\n    return",
    ],
)  # fmt: skip
def test_whether_an_http_call_went_well_is_no_look_at_the_state(body, looked):
    rest = "def fetch(order):\n    return session.get(order)\n"

    assert body(f"{looked}\nrequests.post('https://x')", rest=rest) == ["IDEM051"]
    assert body(f"{looked}\nredis.Redis().incr('orders')", rest=rest) == ["IDEM053"]


@pytest.mark.parametrize(
    "looked",
    [
        "if requests.get(order).json()['status'] == 'paid':\n    return",
        "data = requests.get(order).json()\nif data['paid']:\n    return",
        "found = requests.head(order)\nif found.status_code != 404:\n    return",
        "r = requests.post('https://x/graphql').json()\nif r['state'] == 'paid':\n    return",
        "r = requests.get(order)\nif not r.ok or order.sent_at:\n    return",
        "order.status = requests.get(n).text\nif order.status == 'paid':\n    return",
    ],
)
def test_what_an_http_call_tells_of_the_work_is_a_look_at_the_state(body, looked):
    assert body(f"{looked}\nrequests.post('https://x')") == []


@pytest.mark.parametrize(
    "success",
    [
        "requests.head(order).status_code == 200",
        "200 == requests.head(order).status_code",
        "requests.get(order).ok",
        "httpx.get(order).is_success",
        "requests.get(order).status_code in (200, 304)",
        "requests.request('HEAD', order).status_code in [200, 201]",
        "session.get(order).status_code < 300",
        "session.get(order).status_code <= 299",
        "300 > session.get(order).status_code",
        "200 <= session.get(order).status_code < 300",
        "requests.head(order).status_code == requests.codes.ok",
        "httpx.head(order).status_code == httpx.codes.OK",
        "(r := requests.head(order)).status_code == 200",
        "fetch(order).status_code == 200",
        "(answer := fetch(order)).ok and order",
    ],
)
@pytest.mark.parametrize("end", ["return", "raise ValueError"])
def test_whether_it_is_there_already_is_a_look_at_the_state(body, success, end):
    rest = "def fetch(order):\n    return session.get(order)\n"
    post = "requests.post('https://x/ship')"

    assert body(f"if {success}:\n    {end}\n{post}", rest=rest) == []
    assert body(f"if not ({success}):\n    {post}\nelse:\n    {end}", rest=rest) == []
    # what was asked is needed for the rest
    assert body(f"if not ({success}):\n    {end}\n{post}", rest=rest) == ["IDEM051"]


@pytest.mark.parametrize(
    "looked",
    [
        "r = requests.get(order)\nif r.status_code == 200:\n    return",
        "r = requests.get(order)\ncode = r.status_code\nif code == 200:\n    return",
        "there = requests.head(order).ok\nif there:\n    return",
        "there = requests.head(order).status_code == 200\nif there:\n    return",
        "r = requests.head(order)\nif r.status_code != 200:\n    pass\nelse:\n    return",
        "r = requests.head(order)\nif r.status_code >= 400:\n    pass\nelse:\n    return",
        "r = requests.head(order)\nif r.is_error:\n    pass\nelse:\n    return",
        "r = requests.head(order)\nif r.status_code not in (200,):\n    pass\nelse:\n    return",
    ],
)
def test_a_name_for_the_answer_changes_nothing(body, looked):
    assert body(f"{looked}\nrequests.post('https://x/ship')") == []


def test_a_loop_goes_on_with_what_is_not_there_yet(body):
    asked = "if requests.head(one).ok:\n        continue"

    assert body(f"for one in order:\n    {asked}\n    requests.post('https://x')") == []
    assert body(f"for one in order:\n    {asked}\nrequests.post('https://x')") == ["IDEM051"]


@pytest.mark.parametrize(
    "looked",
    [
        "if requests.get(order).status_code == 200:\n    n += 1",
        "if requests.get(order).status_code == 503:\n    return",
        "if requests.get(order).status_code < 500:\n    return",
        "if requests.get(order).status_code not in (200, 201):\n    return",
        "if requests.get(order).status_code >= 300:\n    return",
        "if requests.get(order).status_code != requests.codes.ok:\n    raise OSError",
        "if requests.get(order).elapsed == 200:\n    return",
        "if requests.put(order).status_code == 200:\n    return",
        "if requests.post('https://x/search').ok:\n    return",
        "if requests.request('PUT', order).ok:\n    return",
    ],
)
def test_other_answers_are_no_look_at_the_state(body, looked):
    assert body(f"{looked}\nrequests.post('https://x/ship')") == ["IDEM051"]


@pytest.mark.parametrize(
    "looked",
    [
        "r = requests.post('https://x')\nif r.ok:\n    return",
        "r = requests.post('https://x')\nif r.status_code == 200:\n    return",
        "r = requests.post('https://x')\nr.raise_for_status()",
        "r = requests.post('https://x')\nif r.status_code != 200:\n    raise OSError",
        "r = requests.post('https://x')\nif not r.ok:\n    raise OSError",
        "r = requests.post('https://x/paid', json={'status': n})\nif not r:\n    return",
        "if requests.post('https://x').json()['status'] != 'done':\n    raise OSError",
        "data = requests.post('https://x').json()\nif not data['paid']:\n    return",
        "r = tell()\nif r.status_code != 200:\n    raise OSError",
        "charge = stripe.Charge.create(amount=n)\nif charge.status != 'paid':\n    return",
        "sent = send_mail('s', 'b', None, [])\nif not sent:\n    return",
        "r = requests.post('https://x')\nmatch r.status_code:\n    case 500:\n        return",
    ],
)
def test_the_answer_of_an_effect_does_not_guard_the_next_one(body, looked):
    rest = "def tell():\n    return requests.post('https://x')\n"

    assert body(f"{looked}\nrequests.post('https://y')", IDEMPOTENT, rest) == ["IDEM052"]


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
def test_several_effects_under_one_key_are_found_s_s1(body, several):
    """S-S1: one key for the whole job is wrong. A half-done batch is redone from the start."""
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
