"""A retry that can never be sent as it was asked for is a failure: it is not tried again and again,
with the body's effects each time."""

from __future__ import annotations

import json

import pytest

from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Message, letter_id
from tests.tasks.stage import open_stage


def test_a_retry_to_a_queue_that_is_not_there_is_a_failure_at_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    conf = json.dumps({"task_create_missing_queues": False})
    with open_stage(tmp_path_factory, "tests.apps.idem", TEST_CONF=conf) as stage:
        stage.start_worker()
        sent = stage.tasks.strays.delay("s")

        with pytest.raises(Exception, match="nowhere"):
            sent.get(timeout=60)

        assert stage.effects.count("start:s") == 1
        letter = letters_of(stage.tasks.app).get(letter_id(sent.id, Message(b"")))
        assert letter is not None
        assert letter.fault.error_type == "celery.exceptions.QueueNotFound"
