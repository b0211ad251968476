"""Names that are assigned again and again: reading a body takes steps in proportion to its size."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from celery_idem.doctor.source import clients, effects, state, unstable
from celery_idem.doctor.source.names import Names
from tests.doctor.bodies import IDEMPOTENT, body, packages

__all__ = ["body", "packages"]  # fixtures
pytestmark = pytest.mark.usefixtures("packages")

#: Names are resolved at most so many times for each assignment: a few words in each, and each of
#: them once for every hop.
MOST_STEPS = 300


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A mark for every expression that is looked at."""
    found: list[str] = []

    def counted(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def count(*args: object, **options: object) -> object:
            found.append(name)
            return real(*args, **options)

        monkeypatch.setattr(owner, name, count)

    counted(Names, "resolve")
    counted(state, "_words")
    counted(state, "_answers")
    counted(unstable, "_unstable")
    counted(clients, "words_in")
    counted(effects._Walk, "_expression")
    return found


def replaced(times: int) -> str:
    return "\n".join(f"text = text.replace('{it}', '')" for it in range(times))


def asked(times: int) -> str:
    return "\n".join(
        f"text = text.replace('{it}', '')\nif text:\n    n += 1" for it in range(times)
    )


def filtered(times: int) -> str:
    lines = [f"if n == {it}:\n    text = text.filter(x={it})" for it in range(times)]
    return "\n".join(["text = Order.objects.all()", *lines, "if text:\n    n += 1"])


def read(times: int) -> str:
    return "\n".join(
        f"text = text.a{it}\nif text.b{it} == {it}:\n    n += 1" for it in range(times)
    )


def from_each_other(times: int) -> str:
    lines = [f"text = other.part{it}\nother = text or n" for it in range(times)]
    return "\n".join([*lines, "if text or other:\n    n += 1"])


def from_two_earlier(times: int) -> str:
    lines = [f"v{it} = v{it - 1}.a or v{it - 2}.b\nv{it} = v{it - 2}" for it in range(2, times)]
    return "\n".join(["v0 = v1 = n", *lines, f"text = v{times - 1}\nif text:\n    n += 1"])


def names_for_names(times: int) -> str:
    lines = [f"v{it} = v{it - 1}\nv{it} = v{it - 2}" for it in range(2, times)]
    return "\n".join(["v0 = v1 = n\nv1 = text", *lines, f"text = v{times - 1}"])


SHAPES = [replaced, asked, filtered, read, from_each_other, from_two_earlier, names_for_names]
USES = {
    "condition": "if text:\n    requests.post('https://x', headers=text)",
    "key of a call": "job.apply_async(idem_key=text)",
    "key of a guard": "with idempotent(text):\n    pass",
    "counter": "r.incr(text)",
    "key of a step": "requests.post('https://x', json={'a': text.key})",
    "address": "requests.post(text, headers=text)",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("called", [False, True], ids=["in the body", "in a helper"])
def test_steps_grow_with_the_size(
    body: Callable[..., list[str]],
    steps: list[str],
    shape: Callable[[int], str],
    use: str,
    called: bool,
) -> None:
    counts = []
    for times in (30, 60):
        steps.clear()
        text = f"{shape(times)}\n{use}"
        if called:
            helper = ast.parse(f"def clean(text, n):\n{_indented(text)}\n    return text")
            body("if clean(order, n):\n    clean(order, 1)", IDEMPOTENT, ast.unparse(helper))
        else:
            body(f"text = order.text\n{text}", IDEMPOTENT)
        counts.append(len(steps))

    assert counts[0] < 30 * MOST_STEPS
    assert counts[1] < 2.5 * counts[0]


def test_a_helper_that_is_called_often_is_read_once_for_each_way_to_it(
    body: Callable[..., list[str]], steps: list[str]
) -> None:
    rest = f"def clean(text, n):\n{_indented(asked(30))}\n    return text\n"

    body("\n".join(["clean(order, n)"] * 60), rest=rest)

    assert len(steps) < 90 * MOST_STEPS


def test_a_body_of_a_thousand_branches_is_read_to_its_end(body: Callable[..., list[str]]) -> None:
    assert body(f"{replaced(3)}\n{asked(700)}\nrequests.post(text)") == ["IDEM051"]


def test_the_entry_of_each_call_of_a_helper_is_its_own(
    body: Callable[..., list[str]],
) -> None:
    rest = "def tell():\n    requests.post('https://x')\n"
    claim = "if r.set('x', 1, nx=True):\n    return\n"

    assert "IDEM054" not in body(f"tell()\n{claim}tell()", rest=rest)
    assert "IDEM054" in body(f"tell()\ntell()\n{claim}", rest=rest)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
