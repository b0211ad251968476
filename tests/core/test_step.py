"""A step as bytes, and the name of the function that it was recorded under."""

from __future__ import annotations

import functools

import pytest

from celery_idem.core.step import StepRecord, StepState, bare, function_name


def send(order: int) -> None: ...


class Sender:
    def send(self) -> None: ...

    def __call__(self) -> None: ...


class Nowhere:
    """A callable that tells neither its own name nor its module's."""

    def __getattribute__(self, name: str) -> object:
        if name == "__module__":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("step", "packed"),
    [
        (StepRecord(StepState.DONE, "shop.send", b"7"), b'["done", "shop.send", ""]\n7'),
        (StepRecord(StepState.STARTED, "shop.send"), b'["started", "shop.send", ""]\n'),
        (
            StepRecord(StepState.FAILED, "shop.send", b"\n\xff\n", "shop.Refused"),
            b'["failed", "shop.send", "shop.Refused"]\n\n\xff\n',
        ),
    ],
)
def test_a_step_survives_packing_in_a_form_that_stays(step, packed):
    assert step.pack() == packed
    assert StepRecord.unpack(packed) == step


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"text\n",
        b"\xff\n",
        b"7\n",
        b"null\n",
        b'{"done": 1, "f": 2, "": 3}\n',
        b'["done"]\n',
        b'["done", "f", "", ""]\n',
        b'["ended", "f", ""]\n',
    ],
)
def test_bytes_that_are_no_step_are_refused(packed):
    with pytest.raises(ValueError):
        StepRecord.unpack(packed)


def test_it_is_said_what_was_found_instead_of_a_step():
    with pytest.raises(ValueError, match=r"^not a step: its first line holds a int$"):
        StepRecord.unpack(b"7\n")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (send, "send"),
        (functools.partial(send, 1), "send"),
        (functools.partial(functools.partial(send), order=1), "send"),
        (Sender.send, "Sender.send"),
        (Sender().send, "Sender.send"),
        (Sender(), "Sender"),
        (Sender, "Sender"),
    ],
)
def test_a_function_is_named_with_its_module_whatever_is_wrapped_around_it(function, name):
    assert function_name(function) == f"{__name__}.{name}"


def test_what_names_no_module_is_named_without():
    assert function_name(Nowhere()) == ".Nowhere"


def test_what_is_no_partial_is_taken_as_it_is():
    sender = Sender()

    assert bare(sender) is sender
