"""What the public sees: a live picture on a terminal, plain lines anywhere else."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from example_project.figures import Figures, Kill
from example_project.ledger import Ledger

#: Pause between two plain lines of progress, in seconds.
PLAIN_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment of the demo."""

    begun: float  #: wall clock of the first order
    at_s: float  #: seconds since then
    orders: int
    clicks: int
    answers: int
    workers: dict[str, int]  #: name → pid of its main process
    figures: Figures


class View(Protocol):
    """How the demo is shown."""

    def say(self, text: str) -> None:
        """One line about the set-up."""

    def show(self, scene: Scene) -> None:
        """The moment; called several times a second."""

    def close(self) -> None:
        """The stream is over."""

    def reckon(self, ledger: Ledger) -> None:
        """The ledger at the end."""


def view_for(stream: Any = None) -> View:
    """Live on a terminal when rich is installed; plain when piped, or on a dumb terminal."""
    stream = stream or sys.stdout
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    if not stream.isatty() or dumb or importlib.util.find_spec("rich") is None:
        return PlainView()
    from example_project.live import LiveView

    return LiveView()


def story_of(kills: tuple[Kill, ...], begun: float) -> list[str]:
    """The kills and the recoveries as sentences, in order of time."""
    told: list[tuple[float, str]] = []
    for kill in kills:
        whom = f"process {kill.pid} of {kill.worker}" if kill.what == "child" else kill.worker
        told.append((kill.at, f"SIGKILL {whom}: order {kill.order_id}, {kill.moment}"))
        if kill.restarted_s is not None:
            text = f"order {kill.order_id} is taken up again, {kill.restarted_s:.1f} s later"
            told.append((kill.at + kill.restarted_s, text))
        if kill.recovered_s is not None:
            text = f"order {kill.order_id} is done"
            told.append((kill.at + kill.recovered_s, text))
    return [f"{at - begun:5.1f} s  {text}" for at, text in sorted(told)]


def lines_of(ledger: Ledger) -> list[tuple[str, str, str]]:
    """The ledger as (what, how many, remark)."""
    again = ledger.runs - ledger.orders
    lines = [
        ("orders", f"{ledger.orders}", f"sent {ledger.clicks} times, impatiently"),
        ("in the database", f"{ledger.entered}", _equal(ledger.entered, ledger.orders, "orders")),
        ("taken from stock", f"{ledger.taken}", _equal(ledger.taken, ledger.orders, "orders")),
        ("cards charged", f"{ledger.charges}", _equal(ledger.charges, ledger.orders, "orders")),
        ("money", f"{ledger.charged_cents / 100:,.2f}",
         _equal(ledger.charged_cents, ledger.ordered_cents, "prices")),
        ("asked at the gateway", f"{ledger.asked}", _asked(ledger)),
        ("mails sent", f"{ledger.mails}", _mailed(ledger)),
        ("jobs run", f"{ledger.runs}", f"{again} of them again, after a crash"),
        ("clicks answered", f"{ledger.answers}", f"of {ledger.clicks}"),
        ("duplicates answered", f"{ledger.duplicates}", "with the first click's receipt"),
        ("crashes recovered", f"{sum(k.recovered_s is not None for k in ledger.kills)}",
         f"of {len(ledger.kills)}"),
    ]  # fmt: skip
    for what in ("child", "worker"):
        hit = [kill for kill in ledger.kills if kill.what == what]
        if hit:
            noticed = max(kill.noticed_s or 0.0 for kill in hit)
            waited = max(kill.restarted_s or 0.0 for kill in hit)
            remark = f"seconds until its claim is free; {waited:.1f} until its turn in the queue"
            lines.append((f"after a killed {what}", f"{noticed:.1f}", remark))
    return lines


def _asked(ledger: Ledger) -> str:
    if not ledger.repeats:
        return "once for each card"
    return f"{ledger.repeats} again: same key, no money moved"


def _mailed(ledger: Ledger) -> str:
    again = ledger.mails - ledger.orders
    if again < 0:
        return f"NOT one for each order: {-again} too few"
    if not again:
        return "once for each order"
    return f"{again} again: killed between the mail and its record, as the guide says"


def _equal(one: int, other: int, what: str) -> str:
    return f"= {what}" if one == other else f"NOT equal to the {what}: {other}"


def verdict_of(ledger: Ledger) -> str:
    """One sentence: did the promise hold?"""
    return "nothing lost, nothing paid twice" if ledger.held else "NOT AS PROMISED"


class PlainView:
    """Lines of text, nothing else: for a pipe, a log, a CI."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._told: deque[str] = deque(maxlen=100)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def show(self, scene: Scene) -> None:
        for sentence in story_of(scene.figures.kills, scene.begun):
            if sentence not in self._told:
                self._told.append(sentence)
                print(sentence, flush=True)
        if scene.at_s >= self._next_s:
            self._next_s = scene.at_s + PLAIN_EVERY_S
            now = scene.figures
            print(
                f"{scene.at_s:5.1f} s  done {now.done}/{scene.orders}, {now.per_second:.1f}/s, "
                f"running {len(now.running)}, mails {now.mails}, "
                f"duplicates answered {now.duplicates}, "
                f"crashes {now.crashes}, recovered {now.recovered}",
                flush=True,
            )

    def close(self) -> None:
        return

    def reckon(self, ledger: Ledger) -> None:
        print()
        for what, many, remark in lines_of(ledger):
            print(f"{what:<22}{many:>10}   {remark}".rstrip())
        print(f"\n{verdict_of(ledger)} ({ledger.took_s:.0f} s in all)", flush=True)
        for fault in ledger.faults:
            print(f"  {fault}", flush=True)
