"""``make demo`` as its public runs it: piped, on a terminal, interrupted, killed."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal

import pytest

from tests.demo.stage import DEADLINE_S, stage
from tests.support.servers import missing_redis
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing_redis()), reason=str(missing_redis())),
]


def test_workers_are_killed_inside_each_step_and_every_order_is_done_once(folder):
    """Each effect is counted where it is: in the shop's database, at the gateway, at the mailer."""
    with stage("demo", folder, "--orders", "60", "--seed", "7") as shown:
        status = shown.process.wait(DEADLINE_S)
        text = shown.text()
        left = shown.left()

    assert status == 0, text
    child = r"SIGKILL process \d+ of worker-\d: order \d+, "
    worker = r"SIGKILL worker-\d: order \d+, "
    assert re.search(child + "its row written and not committed", text)
    assert re.search(worker + "card charged, worker not told yet", text)
    assert re.search(child + "mail sent, worker not told yet", text)
    assert re.search(r"in the database +60 +\S+ orders", text)
    assert re.search(r"taken from stock +60 +\S+ orders", text)
    assert re.search(r"mails sent +6[1-3] +[1-3] again", text)
    assert re.search(r"cards charged +60 +\S+ orders", text)
    assert re.search(r"clicks answered +120 +of 120", text)
    assert re.search(r"after a killed worker +\d+\.\d", text)
    assert "nothing lost, nothing paid twice" in text
    assert left == []
    assert [path.name for path in folder.iterdir()] == ["log"]


def test_piped_output_is_plain_text(folder):
    with stage("demo", folder, "--orders", "40", "--seed", "1", "--no-faults") as shown:
        status = shown.process.wait(DEADLINE_S)
        text = shown.text()

    assert status == 0, text
    assert {c for c in text if not c.isprintable()} == {"\n"}
    assert text.isascii()
    assert re.search(r"asked at the gateway +40 +once for each card", text)
    assert "SIGKILL" not in text


def test_on_a_terminal_it_is_a_live_picture(folder):
    master, slave = pty.openpty()
    with stage("demo", folder, "--orders", "40", "--seed", "2", "--no-faults", out=slave) as shown:
        os.close(slave)
        text = _read_to_the_end(master)
        status = shown.process.wait(DEADLINE_S)

    assert status == 0, text
    assert "\x1b[" in text
    assert "a shop whose workers get killed" in text
    assert "40 of 40 done" in text
    assert "the ledger" in text


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_nothing_is_left_running_however_it_ends(folder, number, status):
    with stage("demo", folder, "--orders", "300") as shown:
        shown.wait_text(r"done [1-9]")
        started = len(shown.left())

        shown.process.send_signal(number)

        assert shown.process.wait(DEADLINE_S) == status
        assert started >= 9  # server, gateway, guardian, two workers of three processes, itself
        wait_until(lambda: shown.left() == [], what=lambda: f"the end of {shown.left()}")


def test_ctrl_c_while_it_is_being_set_up_leaves_nothing_either(folder):
    with stage("demo", folder) as shown:
        shown.wait_text("starting a server")

        shown.process.send_signal(signal.SIGINT)

        assert shown.process.wait(DEADLINE_S) == 130
        wait_until(lambda: shown.left() == [], what=lambda: f"the end of {shown.left()}")
        assert "Traceback" not in shown.text()


def _read_to_the_end(master: int) -> str:
    pieces = []
    with contextlib.suppress(OSError):  # Linux answers EIO when the last writer is gone
        while piece := os.read(master, 65536):
            pieces.append(piece)
    os.close(master)
    return b"".join(pieces).decode("utf-8")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("oracle://host/name", "DATABASE_URL begins with 'oracle://'"),
        ("postgresql://nobody@127.0.0.1:1/none", "this database can't be used"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_without_a_traceback(folder, url, says):
    with stage("demo", folder, "--database", url) as shown:
        status = shown.process.wait(DEADLINE_S)

        assert status == 1
        assert says in shown.text()
        assert "Traceback" not in shown.text()
        wait_until(lambda: shown.left() == [], what=lambda: f"the end of {shown.left()}")
