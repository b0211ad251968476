"""``celery idem check``: what is wrong with a project's configuration, before it hurts."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import click

from celery_idem.cli.told import no_app
from celery_idem.core.errors import IdemError
from celery_idem.doctor import told
from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.finding import Check, Severity
from celery_idem.doctor.fleet import PATIENCE_S
from celery_idem.doctor.project import Project
from celery_idem.doctor.runner import Found, Report, chosen, run

#: Exit codes.
FOUND, NOT_ALL_CHECKED = 1, 3

FORMATS = ("auto", "table", "plain", "json", "github")
_LEVELS = [level.word for level in sorted(Severity, reverse=True)]


@click.command(name="check")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="auto", show_default=True,
              help="auto: a table on a terminal, else plain.")  # fmt: skip
@click.option("--fail-level", type=click.Choice([*_LEVELS, "never"]), default="error",
              show_default=True, help="Exit 1 for a finding at least as bad.")  # fmt: skip
@click.option("--only", multiple=True, metavar="ID", help="Only this check. Several times.")
@click.option("--ignore", multiple=True, metavar="ID", help="Not this check. Several times.")
@click.option("--no-servers", is_flag=True, help="Ask no broker, store or worker.")
@click.option("--require-all", is_flag=True, help="Exit 3 when a check could not be made.")
@click.option("--rabbitmq-api", envvar="IDEM_RABBITMQ_API", metavar="URL",
              help="RabbitMQ's management API: http://user:password@host:15672.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.05), default=PATIENCE_S,
              show_default=True, help="Seconds to wait for the workers' answers.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="List the checks, and make none.")
@click.option("--explain", metavar="ID", help="Explain one check (or: all), and make none.")
@click.pass_context
def check(
    ctx: click.Context,
    as_json: bool,
    form: str,
    fail_level: str,
    only: tuple[str, ...],
    ignore: tuple[str, ...],
    no_servers: bool,
    require_all: bool,
    rabbitmq_api: str | None,
    timeout_s: float,
    listed: bool,
    explain: str | None,
) -> None:
    """Look for mistakes in this project's configuration and tasks.

    Exit codes: 0 nothing as bad as --fail-level · 1 something is · 2 wrong usage, or the project
    can't be imported · 3 with --require-all, a server did not answer.
    """
    try:
        wanted = chosen(CHECKS, only=only, ignore=ignore, servers=not no_servers)
        if explain:
            one = () if explain == "all" else (explain,)
            click.echo("\n\n".join(explained(it) for it in chosen(CHECKS, only=one)))
            return
    except IdemError as error:
        raise click.UsageError(str(error)) from error
    if listed:
        for it in wanted:
            click.echo(f"{it.id}  {it.severity.word:<7}  {it.about}")
        return
    project = _project(_app(ctx), rabbitmq_api=rabbitmq_api, patience_s=timeout_s)
    report = run(project, wanted)
    _FORMS["json" if as_json else form](report, fail_level)
    ctx.exit(exit_code(report, fail_level, require_all))


def exit_code(report: Report, fail_level: str, require_all: bool) -> int:
    """What the command ends with: findings count more than what could not be asked."""
    if fail_level != "never" and report.at_least(Severity[fail_level.upper()]):
        return FOUND
    return NOT_ALL_CHECKED if require_all and report.unchecked else 0


def explained(it: Check) -> str:
    """A check's page: its id, what it is about, and the text of its module."""
    needs = []
    if it.asks_servers:
        needs.append("asks servers or workers")
    if it.reads_source:
        needs.append("reads source")
    how = "".join(f" · {text}" for text in needs)
    return f"## {it.id}\n\n**{it.about}** · {it.severity.word}{how}\n\n{it.explanation}"


def _app(ctx: click.Context) -> Any:
    app = getattr(ctx.obj, "app", None)
    if app is None:
        raise click.UsageError("which app? celery -A proj idem check")
    if missing := no_app():  # it would find nothing, in nothing
        raise click.UsageError(missing)
    return app


def _project(app: Any, **options: Any) -> Project:
    """Whatever a module of the project raises while it is imported is no finding, and no fault of
    the command: Celery says so of the app's own module in the same way."""
    try:
        return Project(app, **options)
    except Exception as error:
        trace = traceback.format_exc()
        raise click.UsageError(f"the project can't be imported:\n\n{trace}") from error


# -- what a person reads


def _auto(report: Report, fail_level: str) -> None:
    _table(report, fail_level) if sys.stdout.isatty() else _plain(report, fail_level)


def _plain(report: Report, fail_level: str) -> None:
    for group in grouped(report.found):
        first = group[0]
        click.echo(f"{first.check.id} {first.severity.word}: {first.check.about}")
        for line in _lines(group):
            click.echo(f"    {line}")
    for it in report.unchecked:
        click.echo(f"{it.check.id} not checked: {it.reason}")
    click.echo(told.summary(report))


def _table(report: Report, fail_level: str) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # pip install celery-idem[cli]
        _plain(report, fail_level)
        return
    colours = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
    table = Table(show_lines=True, header_style="bold")
    for column in ("check", "found"):
        table.add_column(column, overflow="fold")
    for group in grouped(report.found):
        first = group[0]
        colour = colours[first.severity]
        head = Text.assemble((first.check.id, colour), "\n", (first.severity.word, colour))
        body = Text(first.check.about, style="bold")
        for line in _lines(group):
            body.append(f"\n{line}", style="green" if line.startswith("mend it: ") else "")
        table.add_row(head, body)
    for it in report.unchecked:
        table.add_row(Text(f"{it.check.id}\nnot checked", style="dim"), Text(it.reason))
    console = Console()
    if table.row_count:
        console.print(table)
    console.print(told.summary(report), highlight=False)


def grouped(found: Sequence[Found]) -> list[list[Found]]:
    """Findings that say the same of several tasks stand together."""
    groups: dict[tuple[object, ...], list[Found]] = {}
    for it in found:
        finding = it.finding
        same = (it.check.id, it.severity, finding.message, finding.arithmetic, finding.remedy)
        groups.setdefault(same, []).append(it)
    return list(groups.values())


def _lines(group: Sequence[Found]) -> list[str]:
    first = group[0]
    if len(group) == 1:
        where = first.finding.place
        lines = told.said(first)
        return [f"{told.shown_path(where)}:{where.line}", *lines] if where else lines
    lines = [f"{len(group)} times: {first.finding.message}"]
    if first.finding.arithmetic:
        lines.append(first.finding.arithmetic)
    for it in group:
        place = it.finding.place
        at = f"  {told.shown_path(place)}:{place.line}" if place else ""
        lines.append(f"  {it.finding.task or it.finding.setting}{at}")
    return [*lines, f"mend it: {first.finding.remedy}"]


_FORMS: dict[str, Callable[[Report, str], None]] = {
    "auto": _auto,
    "table": _table,
    "plain": _plain,
    "json": lambda report, fail_level: click.echo(told.as_json(report, fail_level)),
    "github": lambda report, _: click.echo("\n".join(told.as_github(report))),
}
