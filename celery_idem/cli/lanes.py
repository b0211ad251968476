"""``celery idem lanes`` and ``celery idem simulate``."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from celery_idem.cli.told import told
from celery_idem.core.errors import ConfigError
from celery_idem.core.order import DeadlineOrder, Lane, parse_lanes
from celery_idem.lanes import simulate as simulation
from celery_idem.lanes.simulate import Fleet, Load, Result
from celery_idem.lanes.status import LaneStatus, Status, look


def _app(ctx: click.Context) -> Any:
    return getattr(ctx.obj, "app", None)


def _settings(app: Any) -> Any:
    from celery_idem.binding import binding_of

    return binding_of(app).settings


@click.command(name="lanes")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", "every_s", type=click.FloatRange(min=0.1), is_flag=False, flag_value=2.0,
              default=None, help="Look again every so many seconds (2).")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.05), default=1.0,
              show_default=True, help="Seconds to wait for the workers' answers.")  # fmt: skip
@click.pass_context
@told
def lanes(ctx: click.Context, as_json: bool, every_s: float | None, timeout_s: float) -> None:
    """Depth, age, weight, share and workers of every lane.

    Weights are those that the workers go by now: lane_weight changes them until a restart, and a
    note says so. Shares are of what was served in the last minute, by count or, with
    charge="seconds", by time; the ideal is what the weights would make it while all lanes have
    work, and nothing for a lane that is paused.

    "running" is of the processes of the workers that serve the lane. "held" (redis-streams only) is
    what workers have taken and not acked, and for how long the first of it; on kombu's Redis
    "oldest" is known for messages that this package has sent.

    --watch goes on until it is interrupted (Ctrl-C), and ends with status 0 then.
    """
    app = _app(ctx)
    settings = _settings(app)
    if not settings.lanes:
        raise ConfigError(
            "no lanes: set idem['lanes'], for example {'critical': 10, 'normal': 5, 'low': 1}"
        )

    def again() -> Status:
        return look(app, settings, timeout_s=timeout_s)

    if every_s is not None:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(again, every_s, as_json)
        return
    status = again()
    click.echo(status.to_json() if as_json else _table(*_lane_rows(status)))
    if not as_json:
        click.echo(_footer(status))


def _watch(again: Callable[[], Status], every_s: float, as_json: bool) -> None:
    if as_json:  # one document a line, for a program
        while True:
            click.echo(json.dumps(json.loads(again().to_json())))
            time.sleep(every_s)
    try:
        from rich.live import Live
        from rich.table import Table
    except ImportError:
        raise click.ClickException("--watch needs rich: pip install 'celery-idem[cli]'") from None

    def draw(status: Status) -> Table:
        head, rows = _lane_rows(status)
        # narrow enough for 80 columns: notes stand below, and what is held may break
        notes = [f"{row[0]}: {row[-1]}" for row in rows if row[-1]]
        caption = "\n".join([*notes, _footer(status)])
        table = Table(caption=caption, caption_justify="left", box=None, padding=(0, 1, 0, 0))
        for column in head[:-1]:
            left, breaks = column == "lane", column == "held"
            table.add_column(column, justify="left" if left else "right", no_wrap=not breaks)
        for row in rows:
            table.add_row(*row[:-1])
        return table

    with Live(draw(again()), refresh_per_second=4) as live:
        while True:
            time.sleep(every_s)
            live.update(draw(again()))


def _lane_rows(status: Status) -> tuple[list[str], list[list[str]]]:
    """Head and rows; what is held is a column only where the broker says it."""
    columns: dict[str, Callable[[LaneStatus], str]] = {
        "lane": lambda lane: lane.name,
        "weight": _weight,
        "depth": lambda lane: "–" if lane.depth is None else str(lane.depth),
        "oldest": lambda lane: "–" if lane.oldest_s is None else _seconds(lane.oldest_s),
        "held": _held,
        "delayed": lambda lane: str(lane.delayed),
        "share": lambda lane: "–" if lane.share is None else f"{lane.share:.1%}",
        "ideal": lambda lane: f"{lane.ideal:.1%}",
        "last min": lambda lane: str(lane.served_last_minute),
        "running": lambda lane: f"{lane.running} of {lane.slots}",
        "workers": lambda lane: str(lane.workers),
        "": lambda lane: lane.note,
    }
    if all(lane.held is None for lane in status.lanes):
        del columns["held"]
    return list(columns), [[cell(lane) for cell in columns.values()] for lane in status.lanes]


def _weight(lane: LaneStatus) -> str:
    """That of the workers, which may differ; where none answered, that of the settings."""
    used = sorted(set(lane.weights.values())) or [lane.weight]
    return f"{used[0]:g}" if len(used) == 1 else f"{used[0]:g}–{used[-1]:g}"


def _held(lane: LaneStatus) -> str:
    if lane.held is None:
        return "–"
    longest = "" if lane.longest_held_s is None else f", {_seconds(lane.longest_held_s)}"
    return f"{lane.held}{longest}"


def _footer(status: Status) -> str:
    unit = "seconds of run time" if status.charge == "seconds" else "messages"
    count = len(status.workers)
    answered = "1 worker answered" if count == 1 else f"{count} workers answered"
    return f"order {status.order}, by {unit}; {answered}"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.ljust(width) if i in (0, len(head) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


# -- simulate


@click.command(name="simulate", short_help="Waits under every order, and weights to keep promises.")
@click.option("--lane", "given", multiple=True, metavar="NAME:rate=…,run=…",
              help="A lane: rate (jobs/s), run (seconds a job), weight, reserve, deadline, "
                   "spread (exponential or fixed). Several times. Without any, the app's lanes "
                   "with the rates and run times of its last minute.")  # fmt: skip
@click.option("--workers", default=None, help="Workers, also several: 1,10,10000. The rates are "
              "those of the first, and grow with the workers.")  # fmt: skip
@click.option(
    "--processes", type=click.IntRange(min=1), default=None, help="Processes of each worker."
)
@click.option("--orders", default="all", show_default=True,
              help=f"Of {', '.join(simulation.ORDERS)}.")  # fmt: skip
@click.option(
    "--propose/--no-propose", default=True, help="Search weights that keep the deadlines."
)
@click.option("--jobs", type=click.IntRange(min=100), default=simulation.MAX_JOBS,
              show_default=True, help="Jobs to simulate, at least five a process.")  # fmt: skip
@click.option("--picture", type=click.Path(dir_okay=False), help="Write a picture (matplotlib).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
@told
def simulate(
    ctx: click.Context,
    given: tuple[str, ...],
    workers: str | None,
    processes: int | None,
    orders: str,
    propose: bool,
    jobs: int,
    picture: str | None,
    as_json: bool,
) -> None:
    """Waits of every lane under every order, and weights that keep the promises.

    Runs the product's own scheduler on a virtual clock: seconds, no broker.
    """
    loads, measured = _loads(ctx, given)
    fleets = _fleets(workers, processes, measured)
    names = _orders(orders, loads)
    results = []
    for fleet in fleets:
        grown = simulation.scaled(loads, fleet.workers / fleets[0].workers)
        results += [simulation.simulate(grown, fleet, order, jobs=jobs) for order in names]
    asked = propose and any(load.lane.deadline_s for load in loads)
    proposal = simulation.propose(loads, fleets[0]) if asked else None
    if picture:
        try:
            draw_waits(results, picture)
        except (OSError, ValueError) as error:  # no such folder; a kind of picture it can't draw
            raise click.ClickException(f"--picture {picture}: {error}") from error
    if as_json:
        plain = {
            "results": [asdict(result) for result in results],
            "proposal": asdict(proposal) if proposal else None,
        }
        click.echo(json.dumps(plain, indent=2))
        return
    click.echo(_table(*_wait_rows(results)))
    needed = sum(load.busy for load in loads)
    click.echo(f"The work keeps {needed:.1f} processes busy; there are {fleets[0].slots}.")
    if proposal:
        click.echo(f"Proposed weights: {proposal.weights}: {proposal.reason}.")


def _loads(ctx: click.Context, given: Sequence[str]) -> tuple[list[Load], Fleet | None]:
    if given:
        loads = [_parse_load(text) for text in given]
        names = [load.lane.name for load in loads]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"--lane {twice[0]!r} is given twice; each lane has one rate")
        return loads, None
    app = _app(ctx)
    if app is None:
        raise ConfigError("give at least one --lane NAME:rate=…,run=…")
    settings = _settings(app)
    return _measured(look(app, settings), parse_lanes(settings.lanes))


def _measured(status: Status, lanes: Sequence[Lane]) -> tuple[list[Load], Fleet]:
    by_name = {lane.name: lane for lane in status.lanes}
    loads = []
    for lane in lanes:
        seen = by_name[lane.name]
        if seen.served_last_minute and seen.run_time_s:
            loads.append(Load(lane, seen.served_last_minute / 60, seen.run_time_s))
    if not loads:
        raise ConfigError(
            "the workers served nothing in the last minute (or none answered): "
            "give --lane NAME:rate=…,run=…"
        )
    count = max(len(status.workers), 1)
    slots = max((lane.slots for lane in status.lanes), default=1)
    return loads, Fleet(count, max(slots // count, 1))


def _parse_load(text: str) -> Load:
    """
    >>> _parse_load("low:rate=2,run=1.5,weight=3").lane.weight
    3.0
    """
    name, _, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    values = {key.strip(): value.strip() for key, _, value in pairs}
    known = {"rate", "run", "weight", "reserve", "deadline", "spread"}
    if not {"rate", "run"} <= values.keys() or values.keys() - known:
        raise ConfigError(
            f"--lane {text!r}: needs rate and run, and knows {', '.join(sorted(known))}"
        )
    spread = values.pop("spread", "exponential")
    if spread not in ("exponential", "fixed"):
        raise ConfigError(f"--lane {text!r}: spread is exponential or fixed")
    numbers = {key: _number(text, key, value) for key, value in values.items()}
    rate, run = numbers.pop("rate"), numbers.pop("run")
    if rate <= 0 or run <= 0:
        raise ConfigError(f"--lane {text!r}: rate and run must be above 0")
    return Load(parse_lanes({name: numbers})[0], rate, run, spread)


def _number(text: str, key: str, value: str) -> float:
    kind = int if key == "reserve" else float
    with contextlib.suppress(ValueError):
        if math.isfinite(found := kind(value)):
            return found
    what = "a whole number" if kind is int else "a number"
    raise ConfigError(f"--lane {text!r}: {key} must be {what}, not {value!r}")


def _fleets(workers: str | None, processes: int | None, measured: Fleet | None) -> list[Fleet]:
    base = measured or Fleet(1, 4)
    try:
        counts = [int(part) for part in workers.split(",")] if workers else [base.workers]
    except ValueError:
        raise ConfigError(
            f"--workers must be whole numbers like 1,10,10000, not {workers!r}"
        ) from None
    each = processes or base.processes
    if min(counts) < 1 or each < 1:
        raise ConfigError("--workers and --processes must be at least 1")
    return [Fleet(count, each) for count in counts]


def _orders(text: str, loads: Sequence[Load]) -> list[str]:
    if text != "all":
        names = text.split(",")
        unknown = [name for name in names if name not in simulation.ORDERS]
        if unknown:
            raise ConfigError(f"unknown order {unknown[0]!r}: {', '.join(simulation.ORDERS)}")
        if "deadline" in names:
            DeadlineOrder(load.lane for load in loads)  # it says which lane has none
        return names
    can_deadline = all(load.lane.deadline_s for load in loads)
    return [name for name in simulation.ORDERS if name != "deadline" or can_deadline]


def _wait_rows(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    head = ["order", "workers", "lane", "p50", "p99", "longest", "promise", "used", ""]
    rows = []
    for result in results:
        for wait in result.waits:
            promise = "–" if wait.deadline_s is None else _seconds(wait.deadline_s)
            rows.append(
                [
                    result.order,
                    f"{result.fleet.workers} × {result.fleet.processes}",
                    wait.lane,
                    _seconds(wait.p50_s),
                    _seconds(wait.p99_s),
                    _seconds(wait.longest_s),
                    promise,
                    f"{result.used:.0%}",
                    "missed" if wait.kept is False else "",
                ]
            )
    return head, rows


def draw_waits(results: Sequence[Result], path: str) -> None:
    """A picture of the waits: one panel per fleet, a bar per order and lane, p99 on a log axis."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise click.ClickException(
            "--picture needs matplotlib: pip install 'celery-idem[pictures]'"
        ) from None
    fleets = list(dict.fromkeys(result.fleet for result in results))
    figure, axes = pyplot.subplots(
        1, len(fleets), figsize=(1.5 + 4.5 * len(fleets), 3.8), squeeze=False, sharey=True
    )
    for axis, fleet in zip(axes[0], fleets, strict=True):
        of_fleet = [result for result in results if result.fleet == fleet]
        lanes_drawn = [wait.lane for wait in of_fleet[0].waits]
        width = 0.8 / len(lanes_drawn)
        for place, lane in enumerate(lanes_drawn):
            heights = [max(result.waits[place].p99_s, 1e-3) for result in of_fleet]
            left = [number + place * width for number in range(len(of_fleet))]
            axis.bar(left, heights, width, label=lane)
        axis.set_xticks(
            [number + 0.4 - width / 2 for number in range(len(of_fleet))],
            [result.order for result in of_fleet],
        )
        axis.set_yscale("log")
        axis.set_title(f"{fleet.workers} × {fleet.processes} processes")
    axes[0][0].set_ylabel("wait, p99 (s)")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
