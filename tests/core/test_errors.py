"""One tree of errors, and what they carry."""

from __future__ import annotations

import inspect
import pickle

import pytest

from celery_idem.core import errors

ALL = [
    found
    for found in vars(errors).values()
    if inspect.isclass(found) and issubclass(found, Exception)
]


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_of_the_one_tree(error):
    assert issubclass(error, errors.IdemError)


@pytest.mark.parametrize("error", ALL)
def test_every_error_says_when_it_is_raised(error):
    assert error.__doc__


@pytest.mark.parametrize("error", ALL)
def test_every_error_survives_the_way_from_a_child_process(error):
    raised = error("what is wrong, and what to do")

    copy = pickle.loads(pickle.dumps(raised))

    assert type(copy) is error
    assert str(copy) == "what is wrong, and what to do"


@pytest.mark.parametrize("result", [None, 0, False, "", [], {"paid": True}])
def test_the_result_of_processed_work_travels_with_the_error(result):
    raised = errors.AlreadyProcessed("done already", result)

    copy = pickle.loads(pickle.dumps(raised))

    assert (str(copy), copy.result) == ("done already", result)


def test_the_time_to_wait_travels_with_the_error():
    copy = pickle.loads(pickle.dumps(errors.InProgress("in progress", 2.5)))

    assert copy.retry_after_s == 2.5


def test_the_time_to_wait_for_a_shared_step_travels_with_the_error():
    copy = pickle.loads(pickle.dumps(errors.StepBusy("busy", 2.5)))

    assert (str(copy), copy.retry_after_s) == ("busy", 2.5)


def test_what_is_not_said_is_nothing():
    assert (str(errors.AlreadyProcessed()), errors.AlreadyProcessed().result) == ("", None)
    for error in (errors.InProgress, errors.StepBusy):
        assert (str(error()), error().retry_after_s) == ("", 0.0)


@pytest.mark.parametrize("error", [errors.ConfigError, errors.KeyInvalid])
def test_what_a_user_wrote_wrongly_is_a_value_error(error):
    assert issubclass(error, ValueError)
