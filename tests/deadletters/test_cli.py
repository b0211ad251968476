"""``celery -A proj dlq …``: what an operator types, and what a script reads."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from celery_idem.cli.dlq import COMMANDS, dlq
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter, Message, Reason, letter_id, named_fault
from tests.deadletters.stages import APP, in_place


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(
    request: pytest.FixtureRequest, redis_url: str, effects: Any, load_app: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:  # fmt: skip
    """An app whose letters are there."""
    settings: dict[str, Any] = {
        "dead_letters": {"arguments": "full"}, "lanes": {"critical": 10, "celery": 1},
    }  # fmt: skip
    env = in_place(request, request.param, monkeypatch)
    if env:
        settings["store"] = "django"
    return load_app(APP, TEST_BROKER=redis_url, TEST_IDEM=json.dumps(settings), **env).app


@pytest.fixture
def run(app: Any) -> Callable[..., Result]:
    def run(*words: str, code: int = 0, typed: str = "") -> Result:
        runner = CliRunner()
        result = runner.invoke(dlq, words, obj=SimpleNamespace(app=app), input=typed)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


def put(app: Any, number: int, error: str = "GatewayDown", **fields: Any) -> Letter:
    body = json.dumps([[f"n{number}"], {}, {"callbacks": None, "chain": None, "chord": None}])
    headers = {"id": f"id-{number}", "task": "letters.breaks", "argsrepr": f"('n{number}',)"}
    message = Message(
        body=body.encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        properties={"priority": 0},
        routing_key="celery",
        queue="celery",
    )
    values: dict[str, Any] = {
        "reason": Reason.FAILURE,
        "task": "letters.breaks",
        "task_id": f"id-{number}",
        "key": f"letters.breaks:breaks:n{number}",
        "lane": "celery",
        "fault": named_fault(error, f"{error} at {number}", f"Traceback\n{error}", "shop.pay:send"),
    }
    letter = Letter(id=letter_id(f"id-{number}", message), message=message, **{**values, **fields})
    return letters_of(app).put(letter)


def test_three_faults_are_seen_in_forty_letters(app: Any, run: Any) -> None:
    for number in range(40):
        put(app, number, ["GatewayDown", "NoSuchCustomer", "Full"][number % 3])

    found = json.loads(run("groups", "--json").stdout)

    assert [(it["error"], it["letters"]) for it in found] == [
        ("GatewayDown", 14),
        ("NoSuchCustomer", 13),
        ("Full", 13),
    ]
    assert set(found[0]) == {"group", "letters", "first", "last", "error", "place", "example"}
    plain = run("groups").stdout
    assert plain.splitlines()[0].split("\t")[0] == "group"
    assert len(plain.splitlines()) == 4


def test_a_list_of_json_is_an_array_of_letters(app: Any, run: Any) -> None:
    letters = [put(app, number) for number in range(3)]

    found = json.loads(run("list", "--json", "--limit", "2").stdout)

    assert [it["id"] for it in found] == [letters[2].id, letters[1].id]
    assert found[0]["arguments"] == {"args": ["n2"], "kwargs": {}}
    assert found[0]["error"]["type"] == "GatewayDown"
    more = json.loads(run("list", "--json", "--after", str(found[-1]["position"])).stdout)
    assert [it["id"] for it in more] == [letters[0].id]


def test_list_is_filtered(app: Any, run: Any) -> None:
    put(app, 1)
    other = put(app, 2, "Full", reason=Reason.POISON, lane="critical")

    for words in (["--reason", "poison"], ["--lane", "critical"], ["--text", "full at"],
                  ["--group", other.fault.group], ["--key", other.key], [other.id]):  # fmt: skip
        assert [it["id"] for it in json.loads(run("list", "--json", *words).stdout)] == [other.id]
    assert json.loads(run("list", "--json", "--since", "1h", "--task", "nobody").stdout) == []
    assert json.loads(run("list", "--json", "--until", "2020-01-01").stdout) == []
    run("list", "--since", "yesterday", code=2)


def test_show_tells_everything_and_prints_the_body_byte_for_byte(app: Any, run: Any) -> None:
    letter = put(app, 1)

    text = run("show", letter.id).stdout
    for part in ("GatewayDown at 1", "shop.pay:send", '"n1"', "Traceback", "died", letter.key):
        assert part in text
    whole = json.loads(run("show", letter.id, "--json").stdout)
    assert whole["message"]["headers"]["id"] == "id-1"
    assert run("show", letter.id, "--body").stdout_bytes == letter.message.body
    run("show", "nobody", code=1)


def test_new_and_gone_faults(app: Any, run: Any) -> None:
    """groups --since … --against …"""
    old = put(app, 1, "Old")
    while (new := put(app, 2, "New")).last_died_ms <= old.last_died_ms + 2:
        letters_of(app).delete(new.id)
    since = (old.last_died_ms + 1) / 1000

    def iso(at_s: float) -> str:
        from datetime import datetime, timezone

        return datetime.fromtimestamp(at_s, timezone.utc).isoformat()

    found = json.loads(
        run("groups", "--json", "--since", iso(since), "--against", iso(since - 60)).stdout
    )
    assert [it["error"] for it in found["new"]] == ["New"]
    assert [it["error"] for it in found["gone"]] == ["Old"]
    run("groups", "--against", "8d", code=2)


def test_replay_says_first_what_it_would_do(app: Any, run: Any) -> None:
    letter = put(app, 1)
    put(app, 2, task="no.such.task", key="")
    put(app, 3, replayable=False)

    counted = json.loads(run("replay", "--all", "--dry-run", "--json").stdout)
    assert counted["fates"] == {"run": 1, "no_task": 1, "not_replayable": 1}
    assert counted["sent"] == 0
    assert letters_of(app).count(Filter()) == 3

    report = json.loads(run("replay", "--all", "--json", code=1).stdout)
    assert report["sent"] == 1
    assert letters_of(app).count(Filter()) == 2
    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("celery")
        assert message.body == letter.message.body
        assert message.headers["idem_replays"] == 1
    assert "was sent again" in run("show", letter.id).stdout


def foretold(**conf: Any) -> subprocess.CompletedProcess[str]:
    """``dlq replay --all --dry-run`` in a process of its own, which is no Django project."""
    env = {**os.environ, "TEST_CONF": json.dumps(conf)}
    env.pop("DJANGO_SETTINGS_MODULE", None)
    argv = [sys.executable, "-m", "celery", "-A", "tests.apps.letters:app", "dlq", "replay"]
    return subprocess.run(
        [*argv, "--all", "--dry-run", "--json"], capture_output=True, text=True, timeout=60, env=env
    )


def test_tasks_that_only_workers_import_are_known(app: Any) -> None:
    """``imports``, ``include``, ``autodiscover_tasks``: Celery imports them in no other process."""
    put(app, 1, task="imported.work", key="imported.work:work:n1")

    said = foretold(imports=["tests.apps.imported"])

    assert json.loads(said.stdout)["fates"] == {"run": 1}, said.stderr


def test_modules_that_cannot_be_imported_keep_the_letters(app: Any) -> None:
    put(app, 1, task="imported.work")
    put(app, 2)

    said = foretold(imports=["no.such.module"])

    assert json.loads(said.stdout)["fates"] == {"no_task": 1, "run": 1}, said.stderr
    assert "No module named 'no'" in said.stderr


def test_replay_wants_a_filter_and_a_yes(app: Any, run: Any) -> None:
    put(app, 1)
    put(app, 2)

    run("replay", code=2)
    run("replay", "--all", code=1, typed="n\n")
    assert letters_of(app).count(Filter()) == 2
    run("replay", "--all", "--yes", "--to-lane", "nowhere", code=1)
    assert letters_of(app).count(Filter()) == 2
    run("replay", "--all", typed="y\n")
    assert letters_of(app).count(Filter()) == 0


def test_edit_shows_the_difference_and_the_new_key(app: Any, run: Any) -> None:
    letter = put(app, 1)

    shown = run("edit", letter.id, "--args", '["n7"]', "--dry-run").stdout
    assert '+    "n7"' in shown
    assert "letters.breaks:breaks:n1 -> letters.breaks:breaks:n7" in shown
    assert letters_of(app).get(letter.id).message == letter.message  # type: ignore[union-attr]

    run("edit", letter.id, "--args", '["n7"]', "--yes")
    edited = letters_of(app).get(letter.id)
    assert edited is not None
    assert json.loads(edited.message.body)[0] == ["n7"]
    assert edited.original == letter.message
    assert edited.history[-1].what == "edited"
    assert "does not take" in run("edit", letter.id, "--kwargs", '{"x": 1}', code=1).output
    assert "not JSON" in run("edit", letter.id, "--args", "[", code=1).output


def test_what_destroys_asks(app: Any, run: Any) -> None:
    letters = [put(app, number) for number in range(4)]

    run("purge", code=2)
    run("delete", letters[0].id, code=1, typed="n\n")
    run("delete", letters[0].id, "--yes")
    run("delete", letters[0].id, "--yes", code=1)
    run("purge", "--key", letters[1].key, "--yes")
    assert letters_of(app).count(Filter()) == 2
    run("purge", "--all", "--yes")
    assert letters_of(app).count(Filter()) == 0


def test_export_and_import_are_inverses(app: Any, run: Any, tmp_path: Any) -> None:
    letters = [put(app, number) for number in range(3)]
    run("edit", letters[0].id, "--args", '["n7"]', "--yes")
    before = letters_of(app).get(letters[0].id)
    path = tmp_path / "letters.jsonl"
    run("export", "--to", str(path))
    run("purge", "--all", "--yes")

    run("import", str(path))
    run("import", str(path))  # twice is once

    assert letters_of(app).count(Filter()) == 3
    after = letters_of(app).get(letters[0].id)
    assert before is not None
    assert after is not None
    assert (after.message, after.original, after.key) == (
        before.message,
        before.original,
        before.key,
    )


def test_stats_is_for_scripts(app: Any, run: Any) -> None:
    run("stats", "--fail-if-any")
    put(app, 1)
    put(app, 2, reason=Reason.POISON)

    counted = json.loads(run("stats", "--json").stdout)
    assert counted == {
        "letters": 2,
        "last_hour": 2,
        "last_day": 2,
        "reasons": {"failure": 1, "poison": 1},
    }
    run("stats", "--fail-if-any", code=1)
    run("stats", "--fail-if-any", "--task", "nobody")


def test_celery_knows_the_commands(app: Any) -> None:
    put(app, 1)
    argv = [sys.executable, "-m", "celery", "-A", "tests.apps.letters:app", "dlq"]

    helped = subprocess.run([*argv, "--help"], capture_output=True, text=True, timeout=60)
    assert all(name in helped.stdout for name in COMMANDS), helped.stderr
    listed = subprocess.run([*argv, "list", "--json"], capture_output=True, text=True, timeout=60)
    assert json.loads(listed.stdout)[0]["task_id"] == "id-1", listed.stderr


@pytest.mark.platform("linux", "darwin")
def on_a_terminal(columns: int, *words: str) -> str:
    """What a person sees whose terminal is so wide."""
    argv = [sys.executable, "-m", "celery", "-A", "tests.apps.letters:app", "dlq", *words]
    master, slave = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(argv, stdout=slave, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(slave)
        output = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            output += chunk
        process.wait(timeout=60)
    os.close(master)
    return output.decode()


def test_a_terminal_gets_a_table(app: Any) -> None:
    put(app, 1)

    seen = on_a_terminal(160, "groups")

    assert re.search(r"─{20}", seen)
    assert re.search(r"\x1b\[1mgroup", seen)
    assert re.search(r"GatewayDown +shop\.pay:send", seen)


@pytest.mark.parametrize("columns", [80, 110, 200])
def test_an_id_is_never_cut_and_a_line_fits(app: Any, columns: int) -> None:
    """Found by the walk-through: at 110 columns ids were cut, and reasons were not there."""
    letter = put(app, 1, fault=named_fault("shop.pay.GatewayDown", "x" * 300, "", "shop.pay:send"))

    seen = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(columns, "list")).splitlines()

    [line] = [line for line in seen if letter.id in line]
    assert "GatewayDown: xxx" in line
    assert max(len(line) for line in seen) <= columns
    assert ("failure" in line) == (columns > 80)


def arguments(app: Any, letter: Letter) -> tuple[Any, Any]:
    kept = letters_of(app).get(letter.id)
    assert kept is not None
    args, kwargs, _ = json.loads(kept.message.body)
    return args, kwargs


def test_one_argument_is_changed_in_every_letter_of_a_fault(app: Any, run: Any) -> None:
    letters = [put(app, number) for number in range(3)]
    other = put(app, 9, "Other")
    group = letters[0].fault.group

    asked = run("edit", "--group", group, "--set", "mended=/a=b", typed="y\n").stdout

    assert '+    "mended": "/a=b"' in asked
    assert "and 2 more like it" in asked
    assert "Save 3?" in asked
    assert [arguments(app, it) for it in letters] == [
        ([f"n{number}"], {"mended": "/a=b"}) for number in range(3)
    ]
    assert arguments(app, other) == (["n9"], {})

    run("edit", letters[1].id, "--set", 'name="7"', "--set", "mended=x", "--yes")
    assert arguments(app, letters[1]) == (["7"], {"mended": "x"})
    kept = letters_of(app).get(letters[1].id)
    assert kept is not None
    assert kept.key == "letters.breaks:breaks:7"
    assert kept.original == letters[1].message


def test_nothing_is_saved_unless_every_letter_can_be(app: Any, run: Any) -> None:
    good, unknown = put(app, 1), put(app, 2, task="letters.nobody_knows")

    said = run("edit", good.id, unknown.id, "--set", "mended=x", "--yes", code=1).output
    assert "letters.nobody_knows is unknown here" in said
    assert arguments(app, good) == (["n1"], {})

    said = run("edit", good.id, "--set", "colour=red", "--yes", code=1).output
    assert "has no argument 'colour'; it has name, mended" in said
    assert "say what changes in each" in run("edit", good.id, unknown.id, code=2).output
    assert "ids, or a filter" in run("edit", "--set", "mended=x", code=2).output
    assert "must be NAME=JSON" in run("edit", good.id, "--set", "mended", code=2).output
    assert "give all" in run("edit", good.id, "--set", "mended=x", "--args", "[]", code=2).output
