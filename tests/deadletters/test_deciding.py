"""An at-most-once step that died: a person decides, and the job goes on (guarantee 4)."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from celery_idem.binding import store_of
from celery_idem.cli.dlq import dlq
from celery_idem.core.record import ClaimRequest, Ending, State
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter, Reason
from celery_idem.deadletters.replay import Fate, replay
from tests.deadletters.looking import DEADLINE_S, letter_of
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "tests.apps.pills") as stage:
        stage.start_worker(concurrency=1)
        yield stage


def uncertain(stage: Stage, name: str) -> Letter:
    sent = stage.tasks.charges.delay(name, str(stage.gate("mended")))
    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.UNCERTAIN
    assert stage.effects.count(f"charge:{name}") == 1
    stage.gate("mended").touch()
    return letter


def decide(stage: Stage, letter: Letter, *words: str, code: int = 0) -> str:
    found = SimpleNamespace(app=stage.tasks.app)
    result = CliRunner().invoke(dlq, ["decide", letter.id, *words], obj=found)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def sent_again(stage: Stage, letter: Letter) -> None:
    assert replay(stage.tasks.app, [letter]).fates == {Fate.RUN: 1}
    wait_until(
        lambda: (r := stage.record(letter.key)) and r.state is State.DONE, DEADLINE_S, "the end"
    )


@pytest.fixture(autouse=True)
def _not_mended(stage: Stage) -> None:
    stage.gate("mended").unlink(missing_ok=True)


def test_undecided_it_ends_there_again(stage: Stage) -> None:
    letter = uncertain(stage, "undecided")

    replay(stage.tasks.app, [letter])

    def again() -> bool:
        kept = letters_of(stage.tasks.app).get(letter.id)
        return kept is not None and kept.times == 2

    wait_until(again, DEADLINE_S, "a second death")
    assert stage.effects.count("charge:undecided") == 1


def test_what_happened_is_not_done_again(stage: Stage) -> None:
    letter = uncertain(stage, "happened")

    said = decide(stage, letter, "--happened", "--result", '"receipt 7"')

    assert f"step 'charge' happened; send it with: dlq replay {letter.id}" in said
    kept = letters_of(stage.tasks.app).get(letter.id)
    assert kept is not None
    assert (kept.history[-1].what, kept.history[-1].detail) == (
        "decided",
        "step 'charge' happened",
    )
    sent_again(stage, letter)
    assert stage.effects.count("charge:happened") == 1
    assert [it["receipt"] for it in stage.effects.lines("mail:happened")] == ["receipt 7"]


def test_what_did_not_happen_is_done(stage: Stage) -> None:
    letter = uncertain(stage, "did not")

    decide(stage, letter, "--did-not-happen")

    sent_again(stage, letter)
    assert stage.effects.count("charge:did not") == 2
    assert [it["receipt"] for it in stage.effects.lines("mail:did not")] == ["receipt 1"]


def test_nobody_decides_while_somebody_works_on_it_or_twice(stage: Stage) -> None:
    letter = uncertain(stage, "busy")
    record = stage.record(letter.key)
    assert record is not None
    store = store_of(stage.tasks.app)
    held = store.claim(
        ClaimRequest(letter.key, "somebody", 60_000, 60_000, fingerprint=record.fingerprint)
    )

    assert "is held now" in decide(stage, letter, "--happened", code=1)

    store.release(held.claim, Ending.RELEASE)  # type: ignore[union-attr]
    assert "is not undecided" in decide(stage, letter, "--happened", "--step", "mail", code=1)
    decide(stage, letter, "--happened")
    assert "is undecided" in decide(stage, letter, "--did-not-happen", code=1)
    assert "say what you know" in decide(stage, letter, code=2)
