"""IDEM050, IDEM054 and IDEM055: keys, and claims made by hand. Nothing of a source is run."""

from __future__ import annotations

import pytest

from tests.doctor.bodies import IMPORTS, SOURCE_CHECKS, body, packages

__all__ = ["body", "packages"]  # fixtures
pytestmark = pytest.mark.usefixtures("packages")


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


@pytest.mark.parametrize(
    ("made", "key"),
    [
        ("p = Payment.objects.create(paid_at=timezone.now())", "f'receipt:{p.pk}'"),
        ("p = Order.objects.filter(expires__gt=timezone.now()).first()", "f'{p.id}'"),
        ("p, new = Order.objects.get_or_create(id=1, defaults={'t': uuid.uuid4()})", "str(p.id)"),
        ("pk = Payment.objects.create(paid_at=timezone.now()).pk", "f'{pk}'"),
        ("p = Order.objects.values().get(expires__gt=timezone.now())", "p['id']"),
        ("p = stored()", "f'receipt:{p.pk}'"),
        ("", "f'{stored().pk}'"),
        ("", "f'{timezone.localtime(order.paid_at)}'"),
        ("", "f'{timezone.localdate(value=order.paid_at)}'"),
    ],
)
def test_a_stored_objects_key_is_right_whatever_the_clock_said_to_its_query(project, made, key):
    examined = project(
        f"{IMPORTS}\nfrom django.utils import timezone\n\ndef stored():\n"
        f"    return Payment.objects.create(paid_at=timezone.now())\n\n"
        f"@app.task(bind=True)\ndef job(self, order):\n    {made or 'pass'}\n"
        f"    with idempotent({key}):\n        pass\n"
    )

    assert examined.found("IDEM050") == []


@pytest.mark.parametrize(
    ("made", "key", "what"),
    [
        ("t = uuid.uuid4()", "f'{t.hex}'", "uuid.uuid4"),
        ("t = uuid.uuid4()", "str(t.int)[:8]", "uuid.uuid4"),
        ("t = datetime.datetime.now()", "t.isoformat()", "datetime.datetime.now"),
        ("t = str(uuid.uuid4())", "t.upper()", "uuid.uuid4"),
        ("h = hashlib.sha256(str(time.time()).encode())", "h.hexdigest()", "time.time"),
        ("t = token()", "t.hex", "uuid.uuid4"),
        ("e = Event(id=uuid.uuid4())", "f'{e.id}'", "uuid.uuid4"),
        ("t = '-'.join(['o', uuid.uuid4().hex])", "t.lower()", "uuid.uuid4"),
        ("p = Payment.objects.create(paid_at=time.time())", "f'{p.paid_at}'", "time.time"),
    ],
)
def test_what_is_read_of_an_unstable_value_is_unstable(project, made, key, what):
    examined = project(
        f"{IMPORTS}\ndef token():\n    return uuid.uuid4()\n\n"
        f"@app.task(bind=True)\ndef job(self, order):\n    {made}\n"
        f"    with idempotent({key}):\n        pass\n"
    )

    assert [it.finding.value for it in examined.report("IDEM050").found] == [what]


DATES = [
    "f'daily:{datetime.date.today()}'",
    "f'daily:{datetime.date.today().isoformat()}'",
    "f'daily:{datetime.datetime.now().date()}'",
    "f'daily:{datetime.datetime.now():%Y-%m-%d}'",
    "'daily:' + datetime.datetime.now().strftime('%Y-%m-%dT%H')",
    "today()",
]
SENDS = """
def today():
    now = datetime.datetime.now()
    return f"daily:{{now.date()}}"

@app.task
def daily(): ...

{head}
    daily.apply_async(idem_key={key})
"""


@pytest.mark.parametrize("key", DATES)
def test_a_producer_may_put_the_date_into_the_key_of_its_message(project, key):
    """The key is made once and goes along with the message; retries and replays keep it."""
    outside = IMPORTS + SENDS.format(head="def order_it():", key=key)
    inside = IMPORTS + SENDS.format(head="@app.task\ndef order_it():", key=key)
    called = outside + "\n@app.task\ndef job():\n    order_it()\n"

    assert project(outside).found("IDEM050") == []
    assert len(project(inside).report("IDEM050").found) == 1
    assert len(project(called).report("IDEM050").found) == 1


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("f'daily:{uuid.uuid4()}'", "uuid.uuid4"),
        ("f'{datetime.date.today()}:{random.random()}'", "random.random"),
        ("f'{datetime.datetime.now():%Y-%m-%d %H:%M:%S}'", "datetime.datetime.now"),
        ("str(time.time())", "time.time"),
    ],
)
def test_a_producer_puts_nothing_else_that_differs_into_a_key(project, key, what):
    examined = project(IMPORTS + SENDS.format(head="def order_it():", key=key))

    assert [it.finding.value for it in examined.report("IDEM050").found] == [what]


def test_a_date_elsewhere_in_a_key_is_found_whoever_runs_it(project):
    examined = project(
        IMPORTS
        + """
def key_of(order):
    return f"{order}:{datetime.date.today()}"

@app.task
def job(order): ...

def use(order):
    with idempotent(key_of(order)):  # here
        pass
"""
    )

    (found,) = examined.report("IDEM050").found

    assert found.finding.place is not None
    assert found.finding.place.line == examined.line_of("# here")


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


def test_a_comment_on_the_tasks_head_silences_what_is_in_its_body(body):
    decorator = "@app.task(acks_late=True)  # idem: ignore[IDEM051]"

    assert body("requests.post('https://x')", decorator) == []


@pytest.mark.parametrize(
    ("score", "found"),
    [
        ("priority", 1),
        ("5", 1),
        ("job.priority", 1),
        ("time.time()", 0),
        ("priority * 10**10 + time.time()", 0),
        ("sent_at", 0),
    ],
)
def test_a_score_without_time_is_found_where_it_orders_a_queue_s_p4(project, score, found):
    """S-P4: FIFO within one score."""
    put = f"def put(job, priority, sent_at):\n    r.zadd('jobs', {{job: {score}}})\n\n"
    pop = "@app.task\ndef work():\n    return r.bzpopmin('jobs')\n"
    read = "@app.task\ndef work():\n    return r.zrange('jobs', 0, 9)\n"

    assert len(project(IMPORTS + put + pop).report("IDEM056").found) == found
    assert project(IMPORTS + put + read).found("IDEM056") == []


@pytest.mark.parametrize(
    "put",
    [
        "r.zadd('jobs', mapping={job: priority})",
        "jobs = {job: priority}\n    r.zadd('jobs', jobs)",
        "r.zadd(name='jobs', mapping={job: 5})",
    ],
)
@pytest.mark.parametrize("pop", ["r.zpopmin('jobs')", "r.bzmpop(5, 1, ['jobs'], min=True)"])
def test_a_bare_score_is_found_however_it_is_given(project, put, pop):
    text = f"def put(job, priority):\n    {put}\n\n@app.task\ndef work():\n    return {pop}\n"

    assert len(project(IMPORTS + text).report("IDEM056").found) == 1


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
