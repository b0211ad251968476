"""The live picture on a terminal, drawn with rich."""

from __future__ import annotations

from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from example_project.figures import PHASES, Running
from example_project.ledger import Ledger
from example_project.view import Scene, lines_of, story_of, verdict_of

STORY_LINES = 6
CURVE_POINTS = 40
CURVE_EVERY_S = 0.5
_BARS = " ▁▂▃▄▅▆▇█"
_COLORS = {
    "begun": "cyan",
    "ordering": "bold yellow",
    "entered": "cyan",
    "asking": "yellow",
    "charged": "bold yellow",
    "paid": "cyan",
    "mailed": "bold yellow",
    "finishing": "green",
}


class LiveView:
    """See :class:`~example_project.view.View`."""

    def __init__(self) -> None:
        self._console = Console()
        self._live: Live | None = None
        self._curve: deque[float] = deque([0.0] * CURVE_POINTS, maxlen=CURVE_POINTS)
        self._next_point_s = 0.0

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{text}[/dim]", highlight=False)

    def show(self, scene: Scene) -> None:
        if scene.at_s >= self._next_point_s:
            self._next_point_s = scene.at_s + CURVE_EVERY_S
            self._curve.append(scene.figures.per_second)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(self._picture(scene), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def reckon(self, ledger: Ledger) -> None:
        color = "green" if ledger.held else "red"
        table = Table(box=None, show_header=False, padding=(0, 2))
        table.add_column()
        table.add_column(justify="right", style="bold")
        table.add_column(style="dim")
        for what, many, remark in lines_of(ledger):
            table.add_row(what, many, remark)
        faults = [Text(f"  {fault}", style="red") for fault in ledger.faults]
        self._console.print(
            Panel(
                Group(table, Text(f"\n  {verdict_of(ledger)}", style=f"bold {color}"), *faults),
                title="the ledger",
                subtitle=f"{ledger.took_s:.0f} s in all",
                border_style=color,
            )
        )

    def _picture(self, scene: Scene) -> RenderableType:
        return Panel(
            Group(
                self._progress(scene),
                Text(),
                _counters(scene),
                Text(),
                _workers(scene),
                Text(),
                _story(scene),
            ),
            title="a shop whose workers get killed",
            subtitle="celery_idem",
            border_style="blue",
        )

    def _progress(self, scene: Scene) -> Table:
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(width=6)
        row.add_column(ratio=1)
        row.add_column(justify="right")
        done = scene.figures.done
        bar = ProgressBar(total=scene.orders, completed=done, complete_style="green")
        row.add_row("orders", bar, f"{done} of {scene.orders} done")
        top = max(*self._curve, 1.0)
        curve = "".join(_BARS[round(point / top * (len(_BARS) - 1))] for point in self._curve)
        row.add_row("pace", Text(curve, style="green"), f"{scene.figures.per_second:.1f} a second")
        return row


def _counters(scene: Scene) -> Table:
    now = scene.figures
    row = Table.grid(padding=(0, 2))
    cells = [
        ("running", len(now.running), "cyan"),
        ("cards charged", now.charges, "green"),
        ("mails", now.mails, "green"),
        ("duplicates answered", now.duplicates, "magenta"),
        ("crashes", now.crashes, "red" if now.crashes else "dim"),
        ("recovered", now.recovered, "green" if now.recovered else "dim"),
    ]
    row.add_row(*(Text.assemble(f"{what} ", (f"{many}", f"bold {color}"))
                  for what, many, color in cells))  # fmt: skip
    return row


def _workers(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, pid in scene.workers.items():
        mine = [run for run in scene.figures.running if run.worker == name]
        table.add_row(
            Text(name, style="bold"), Text(str(pid), style="dim"), *(_busy(run) for run in mine)
        )
    for worker, at in {(k.worker, k.at) for k in scene.figures.kills if k.what == "worker"}:
        when = f"killed at {at - scene.begun:.1f} s"
        table.add_row(Text(worker, style="dim strike"), Text(when, style="red"))
    return table


def _busy(run: Running) -> Text:
    color = _COLORS[run.phase]
    return Text.assemble(
        (f"● {run.order_id:>4} ", color), (f"{PHASES[run.phase].shown:<21}", color)
    )


def _story(scene: Scene) -> Text:
    told = story_of(scene.figures.kills, scene.begun)[-STORY_LINES:]
    lines = [Text(line, style="red" if "SIGKILL" in line else "green") for line in told]
    lines += [Text()] * (STORY_LINES - len(lines))
    return Text("\n").join(lines)
