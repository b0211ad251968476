"""A terminal as an operator has it: bash in tmux, typed into, and read as it looks."""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes import end_group, spawn
from tests.support.waiting import wait_until

DEADLINE_S = 120
WIDTH, HEIGHT = 110, 50
#: number of the command, exit code of the one before
PROMPT = re.compile(r"^\[(\d+):(\d+)\]\$ ?", re.MULTILINE)

TMUX = shutil.which("tmux")


class Terminal:
    """One session of a tmux server of its own, which ends with this process. Use as a context
    manager."""

    def __init__(self, folder: Path, env: Mapping[str, str], cwd: Path) -> None:
        self._server = f"morning-{uuid.uuid4().hex[:8]}"
        self._env = {**env, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        self._cwd = cwd
        self._start = folder / "bashrc"
        self._start.write_text("PS1='[\\#:$?]$ '\nunset PROMPT_COMMAND\n")
        self._settings = folder / "tmux.conf"
        self._settings.write_text("set -g history-limit 50000\n")
        self._log = folder / "tmux.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Terminal:
        shell = f"bash --rcfile {self._start} --noprofile -i"
        size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
        # In the foreground (-D): a daemon would be nobody's child, and outlive us.
        server = [*self._tmux, "-f", str(self._settings), "-D"]
        self._process = spawn(server, self._log, cwd=self._cwd, env=self._env)
        wait_until(
            lambda: self._said("new-session", "-d", *size, shell).returncode == 0,
            DEADLINE_S,
            lambda: f"a session of tmux:\n{self._log.read_text()}",
        )
        self._wait_for_prompt(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._said("kill-server")
        if self._process is not None:
            end_group(self._process)

    def run(self, command: str, *answers: tuple[str, str], code: int = 0) -> str:
        """Type it, give each answer when its question is there, wait for the end; returns what was
        printed, as it looked."""
        number = self._prompts()[-1][0]
        self._type(command)
        for question, answer in answers:
            wait_until(
                lambda question=question: question in self._since(number),  # type: ignore[misc]
                DEADLINE_S,
                lambda question=question: f"{question!r} in {self._since(number)}",  # type: ignore[misc]
            )
            self._type(answer)
        self._wait_for_prompt(number + 1)
        printed = self._since(number)
        ended = next(was for at, was, _ in self._prompts() if at == number + 1)
        assert ended == code, f"{command}: exit code {ended}\n{printed}"
        return printed

    def _since(self, number: int) -> str:
        """What is between the command's own line and the next prompt."""
        text = self._text()
        start = next(end for at, _, end in self._prompts() if at == number)
        rest = text[start:]
        following = PROMPT.search(rest)
        lines = (rest[: following.start()] if following else rest).splitlines()[1:]
        return "\n".join(line.rstrip() for line in lines).rstrip()

    def _prompts(self) -> list[tuple[int, int, int]]:
        """Number, exit code of the one before, and where the command begins."""
        found = PROMPT.finditer(self._text())
        return [(int(it[1]), int(it[2]), it.end()) for it in found]

    def _wait_for_prompt(self, number: int) -> None:
        wait_until(
            lambda: [at for at, _, _ in self._prompts()][-1:] == [number],
            DEADLINE_S,
            lambda: f"prompt {number}:\n{self._text()[-3000:]}",
        )

    def _text(self) -> str:
        # joined: a command that is longer than the line is one line
        return self._do("capture-pane", "-p", "-J", "-S", "-")

    def _type(self, text: str) -> None:
        self._do("send-keys", "-l", text)
        self._do("send-keys", "Enter")

    def _do(self, *words: str) -> str:
        done = self._said(*words)
        done.check_returncode()
        return done.stdout

    def _said(self, *words: str) -> subprocess.CompletedProcess[str]:
        # -N: by the server that is there, and not by one that is started for it. A session has its
        # PATH from who asks for it, and all else from the server.
        return subprocess.run(
            [*self._tmux, "-N", *words],
            cwd=self._cwd, env=self._env, capture_output=True, text=True,
        )  # fmt: skip

    @property
    def _tmux(self) -> list[str]:
        assert TMUX is not None
        return [TMUX, "-L", self._server]
