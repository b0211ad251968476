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
