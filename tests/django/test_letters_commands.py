"""``manage.py dlq``: every subcommand over letters in the database, with good and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kombu import Queue

from celery_idem.cli.dlq import COMMANDS
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter
from celery_idem.django.letters import DjangoLetterStore
from celery_idem.django.management.commands.dlq import Command
from tests.deadletters.stages import in_place
from tests.deadletters.test_cli import put

APP = "tests.apps.letters"
PLACES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


@pytest.fixture(params=PLACES)
def app(
    request: pytest.FixtureRequest, redis_url: str, effects: Any, load_app: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:  # fmt: skip
    """The current app, whose letters are there."""
    idem = {"store": "django", "lanes": {"critical": 10, "celery": 1}}
    env = in_place(request, request.param, monkeypatch)
    app = load_app(APP, TEST_BROKER=redis_url, TEST_IDEM=json.dumps(idem), **env).app
    assert type(letters_of(app)) is DjangoLetterStore
    return app


@pytest.fixture
def manage(app: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``manage("list", "--json")``: what ``manage.py dlq list --json`` prints; ``code`` is what it
    must end with, and ``says`` what its error must say."""

    def run(*words: str, code: int = 0, says: str = "") -> str:
        ended = 0
        try:
            Command().run_from_argv(["manage.py", "dlq", *words])
        except SystemExit as end:
            ended = int(end.code or 0)
        out, err = capsys.readouterr()
        assert ended == code, (words, out, err)
        assert says in out + err, (words, out, err)
        return out

    return run


def left(app: Any) -> int:
    return letters_of(app).count(Filter())


def test_list_groups_show_and_stats(app: Any, manage: Any) -> None:
    letters: list[Letter] = [
        put(app, number, ["GatewayDown", "Full"][number % 2]) for number in range(5)
    ]

    found = json.loads(manage("list", "--json", "--limit", "2"))
    assert [it["id"] for it in found] == [letters[4].id, letters[3].id]
    assert found[0]["state"] == "new"
    assert json.loads(manage("list", "--json", "--after", str(found[-1]["position"])))[0]["id"] == (
        letters[2].id
    )
    for words in (["--text", "full"], ["--group", letters[1].fault.group]):
        assert len(json.loads(manage("list", "--json", *words))) == 2
    for words in (
        ["--queue", "celery"],
        ["--state", "new"],
        ["--lane", "celery"],
        ["--since", "1h"],
    ):
        assert len(json.loads(manage("list", "--json", *words))) == 5
    assert json.loads(manage("list", "--json", "--queue", "nowhere")) == []
    assert [it["letters"] for it in json.loads(manage("groups", "--json"))] == [3, 2]
    assert json.loads(manage("show", letters[0].id, "--json"))["id"] == letters[0].id
    assert letters[0].key in manage("show", letters[0].id)
    assert json.loads(manage("stats", "--json"))["letters"] == 5
    manage("stats", "--fail-if-any", code=1)
    manage("stats", "--fail-if-any", "--reason", "poison")


def test_replay_delete_and_purge(app: Any, manage: Any) -> None:
    letters = [put(app, number) for number in range(6)]

    assert json.loads(manage("replay", "--all", "--dry-run", "--json"))["fates"] == {"run": 6}
    assert json.loads(manage("replay", letters[0].id, "--json"))["sent"] == 1
    manage("show", letters[0].id, says="was sent again")
    manage("replay", letters[0].id, says="no such letters")
    manage("delete", letters[1].id, "--yes", says="1 deleted")
    manage("delete", letters[1].id, "--yes", code=1)
    manage("replay", "--key", letters[2].key, "--yes")
    manage("purge", "--key", letters[3].key, "--yes", says="1 deleted")
    assert left(app) == 2
    manage("purge", "--all", "--yes")
    assert left(app) == 0


def test_edit_export_and_import(app: Any, manage: Any, tmp_path: Path) -> None:
    letter = put(app, 1)
    path = tmp_path / "letters.jsonl"

    manage("edit", letter.id, "--args", '["n7"]', "--dry-run", says='+    "n7"')
    manage("edit", letter.id, "--args", '["n7"]', "--yes", says="saved")
    assert [it["id"] for it in json.loads(manage("list", "--json", "--state", "edited"))] == [
        letter.id
    ]
    manage("export", "--to", str(path), says="1 exported")
    manage("purge", "--all", "--yes")
    manage("import", str(path), says="1 imported")
    manage("import", str(path), says="1 were there already")

    back = letters_of(app).get(letter.id)
    assert back is not None
    assert (back.original, back.key) == (letter.message, "letters.breaks:breaks:n7")


def test_collect_and_floods(app: Any, manage: Any) -> None:
    with app.connection_for_write() as connection:
        queue = Queue("broken")(connection.default_channel)
        queue.declare()
        connection.Producer().publish(
            b"x", routing_key="broken", headers={"task": "t", "id": "i-1"}
        )

    manage("collect", "broken", says="1 collected from broken")
    manage("collect", "broken", says="0 collected from broken")
    assert left(app) == 1
    assert json.loads(manage("floods", "--json", "--timeout", "0.1")) == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["burn"], 2, "burn"),
        (["list", "--since", "yesterday"], 2, "yesterday"),
        (["list", "--reason", "bad luck"], 2, "bad luck"),
        (["list", "--state", "sad"], 2, "sad"),
        (["list", "--limit", "many"], 2, "many"),
        (["groups", "--against", "8d"], 2, "--since"),
        (["show"], 2, "ID"),
        (["show", "nobody"], 1, "no letter nobody"),
        (["list", "nobody"], 1, "no letter nobody"),
        (["export", "nobody"], 1, "no letter nobody"),
        (["purge", "nobody", "--yes"], 1, "no letter nobody"),
        (["replay", "nobody", "--yes"], 1, "no letter nobody"),
        (["replay"], 2, "--all"),
        (["replay", "--all", "--to-lane", "nowhere"], 1, "nowhere"),
        (["edit"], 2, "which"),
        (["edit", "nobody", "--args", "[]", "--yes"], 1, "no letter nobody"),
        (["delete", "--yes"], 2, "ID"),
        (["delete", "nobody", "--yes"], 1, "0 deleted"),
        (["purge"], 2, "--all"),
        (["import", "/no/such/file"], 2, "/no/such/file"),
        (["export", "--to", "/no/such/folder/file"], 2, "/no/such/folder/file"),
        (["floods", "--timeout", "soon"], 2, "soon"),
        (["collect", "--limit", "all"], 2, "all"),
    ],
)  # fmt: skip
def test_wrong_input_is_said_and_changes_nothing(
    app: Any, manage: Any, words: list[str], code: int, says: str
) -> None:
    put(app, 1)

    manage(*words, code=code, says=says)

    assert left(app) == 1


def test_a_file_that_holds_no_letters_is_said(app: Any, manage: Any, tmp_path: Path) -> None:
    path = tmp_path / "no.jsonl"
    path.write_text('{"id": 1}\n')

    manage("import", str(path), code=1, says="line 1 is no letter")


def test_every_subcommand_has_its_help(app: Any, manage: Any) -> None:
    for name in COMMANDS:
        manage(name, "--help", says="Usage")


@pytest.mark.parametrize("app", ["sqlite"], indirect=True)
def test_a_script_sees_the_exit_codes_of_manage_py(app: Any) -> None:
    put(app, 1)
    code = (
        "import sys, tests.apps.letters\n"
        "from django.core.management import execute_from_command_line\n"
        "execute_from_command_line(['manage.py', 'dlq', *sys.argv[1:]])\n"
    )

    def ended(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", code, *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, env=os.environ)

    fine, any_, wrong = ended("list", "--json"), ended("stats", "--fail-if-any"), ended("purge")

    assert (fine.returncode, any_.returncode, wrong.returncode) == (0, 1, 2), wrong.stderr
    assert json.loads(fine.stdout)[0]["task_id"] == "id-1"
