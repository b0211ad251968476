"""The report: text for a terminal, and one self-contained page of HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from chaos.picture import timeline
from chaos.recovery import DEADLY, Recovery, quantile
from chaos.run import Outcome
from chaos.schedule import Kind
from chaos.verdict import POPPED, PROMISES, UNREPLICATED

#: Broken keys that are named; the rest are counted.
MOST_NAMED = 12

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em;
       color: #1c2128; background: #fff; }
h1 { font-size: 1.6em } h2 { font-size: 1.25em; margin-top: 2.2em }
table { border-collapse: collapse; margin: .8em 0; font-size: .93em }
th, td { text-align: left; padding: .25em .8em; border-bottom: 1px solid #d8dee4;
         vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.holds { color: #116329 } .broken { color: #a40e26; font-weight: 600 }
.known { color: #7d4e00 } svg { width: 100%; height: auto } code { font-size: .92em }
details { margin: .6em 0 }
"""


def summary(outcome: Outcome) -> str:
    """The verdict, the ledger and the recovery times of one broker, as text."""
    plan = outcome.plan
    head = f"\n{plan.leg.title}; {plan.length_s:g} s, seed {plan.seed}, "
    out = [head + f"{len(outcome.happenings)} faults"]
    for promise in outcome.verdict.promises:
        out.append(f"  {'holds ' if promise.holds else 'BROKEN'}  {promise.text}")
        out += [f"            {text}" for text in _named(promise.broken)]
    for known in outcome.verdict.known:
        out.append(f"  known   {known.text}: {len(known.broken)}")
    out += [f"  {number:7}  {what}" for what, number in _figures(outcome)]
    out += [f"           {text}" for text in _letters(outcome)]
    out.append("  recovery, seconds                  faults  jobs   p50   p99   max   shop p99")
    for row in outcome.recoveries:
        cells = "  ".join(f"{_s(value):>4}" for value in _cells(row))
        out.append(f"  {row.kind.value:34} {row.faults:6}  {row.hit:4}  {cells}")
    out += [f"  ended by itself: {text}" for text in outcome.ended_alone]
    return "\n".join(out)


def figures(outcomes: Sequence[Outcome]) -> str:
    """The verdicts and figures of all brokers as Markdown, for the documentation."""
    plan = outcomes[0].plan
    names = {name: [dict(_figures(o))[name] for o in outcomes] for name, _ in _figures(outcomes[0])}
    rows: list[tuple[str, list[str]]] = [("faults", [str(len(o.happenings)) for o in outcomes])]
    rows += [(name, [str(number) for number in numbers]) for name, numbers in names.items()]
    for kind in DEADLY:
        text = f"{kind.value}: started again, p50 / p99 / max (jobs)"
        rows.append((text, [_job(o, kind) for o in outcomes]))
    rows.append(("any fault: next job done, p99 / max", [_service(o) for o in outcomes]))
    for i, text in enumerate(PROMISES):
        holds = [o.verdict.promises[i].holds for o in outcomes]
        rows.append((text, ["holds" if it else "**broken**" for it in holds]))
    rows += [(text, [_known(o, text) for o in outcomes]) for text in (POPPED, UNREPLICATED)]
    head = ["", *(o.plan.leg.name for o in outcomes)]
    table = [head, ["---", *("---:" for _ in outcomes)], *([name, *cells] for name, cells in rows)]
    said = (
        f"{plan.length_s / 60:g} minutes on each broker, seed {plan.seed}; {plan.workers} workers "
        f"of two processes, {plan.rate:g} jobs a second; leases of 4 s. Times in seconds."
    )
    legs = [f"- **{o.plan.leg.name}**: {o.plan.leg.title}" for o in outcomes]
    return "\n".join([said, "", *legs, "", *("| " + " | ".join(row) + " |" for row in table)])


def _job(outcome: Outcome, kind: Kind) -> str:
    row = next((row for row in outcome.recoveries if row.kind is kind), None)
    if row is None or not row.seconds:
        return ""
    return " / ".join(_s(row.job(part)) for part in (0.5, 0.99, 1.0)) + f" ({len(row.seconds)})"


def _service(outcome: Outcome) -> str:
    seconds = [second for row in outcome.recoveries for second in row.service]
    return f"{_s(quantile(seconds, 0.99))} / {_s(quantile(seconds, 1.0))}"


def _known(outcome: Outcome, text: str) -> str:
    return str(sum(len(known.broken) for known in outcome.verdict.known if known.text == text))


def page(outcomes: Sequence[Outcome]) -> str:
    """One page for all brokers of a run."""
    holds = all(outcome.verdict.holds for outcome in outcomes)
    first = outcomes[0].plan
    verdict = "every promise held" if holds else "a promise was broken"
    head = (
        f"<p>{first.length_s / 60:g} minutes on each broker, seed {first.seed}; "
        f"{first.workers} workers of two processes, {first.rate:g} jobs a second, "
        f"a fault every {first.gap_s:g} s. Made by <code>make chaos "
        f"MINUTES={first.length_s / 60:g} "
        f"SEED={first.seed}</code>; the same seed gives the same faults.</p>"
    )
    body = "\n".join(_section(outcome) for outcome in outcomes)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Chaos: {verdict}</title><style>{STYLE}</style></head><body>"
        f'<h1>Chaos: <span class="{"holds" if holds else "broken"}">{verdict}</span></h1>'
        f"{head}{body}</body></html>\n"
    )


def _section(outcome: Outcome) -> str:
    parts = [f"<h2>{escape(outcome.plan.leg.title)}</h2>", timeline(outcome), _verdict(outcome)]
    rows = [(escape(what), str(number)) for what, number in _figures(outcome)]
    parts += ["<h3>Ledger</h3>", _table(("", ""), rows)]
    parts += [f"<p>{escape(text)}</p>" for text in _letters(outcome)]
    parts += [f"<p>A worker ended by itself: {escape(text)}</p>" for text in outcome.ended_alone]
    parts += ["<h3>Recovery, in seconds</h3>", _recovery_table(outcome.recoveries)]
    parts.append(
        "<p>Jobs: those that were running in what was killed, until they were started again. Shop: "
        "from the beginning of the fault until any next job was done.</p>"
    )
    faults = [
        (f"{h.fault.at_s:.1f}", h.fault.kind.value,
         "server" if h.fault.target < 0 else f"worker {h.fault.target}",
         f"{h.ended - h.began:.1f}", escape(h.remark))
        for h in sorted(outcome.happenings, key=lambda h: h.began)
    ]  # fmt: skip
    table = _table(("at, s", "fault", "target", "lasted, s", ""), faults, numbers=(0, 3))
    parts.append(f"<details><summary>All {len(faults)} faults</summary>{table}</details>")
    return "\n".join(parts)


def _verdict(outcome: Outcome) -> str:
    rows = []
    for promise in outcome.verdict.promises:
        word = (
            '<span class="holds">holds</span>'
            if promise.holds
            else '<span class="broken">broken</span>'
        )
        names = "<br>".join(escape(text) for text in _named(promise.broken))
        rows.append((escape(promise.text), word, names))
    for known in outcome.verdict.known:
        word = f'<span class="known">{len(known.broken)}, as documented</span>'
        rows.append((escape(known.text), word, ""))
    return "<h3>Verdict</h3>" + _table(("promise", "", ""), rows)


def _recovery_table(rows: Sequence[Recovery]) -> str:
    cells = [
        (row.kind.value, str(row.faults), str(row.hit), *map(_s, _cells(row)))
        for row in sorted(rows, key=lambda row: row.kind.value)
    ]
    head = ("fault", "faults", "jobs hit", "p50", "p99", "max", "shop, p99")
    return _table(head, cells, numbers=range(1, 7))


def _cells(row: Recovery) -> tuple[float | None, ...]:
    return row.job(0.5), row.job(0.99), row.job(1.0), quantile(row.service, 0.99)


def _figures(outcome: Outcome) -> list[tuple[str, int]]:
    figures = list(outcome.verdict.counts.items())
    figures.append(("sends refused by the broker, and sent again", outcome.refused))
    figures.append(("workers that ended by themselves", len(outcome.ended_alone)))
    figures.append(("seconds from the last fault until all was done",
                    round(outcome.ended - outcome.calm)))  # fmt: skip
    return figures


def _letters(outcome: Outcome) -> list[str]:
    found = Counter(text.partition(" ")[0] for text in outcome.letters.values())
    return [f"letters: {number} × {reason}" for reason, number in found.most_common()]


def _named(keys: Sequence[str]) -> list[str]:
    rest = len(keys) - MOST_NAMED
    return (
        [", ".join(keys[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")] if keys else []
    )


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = (1,)
) -> str:
    right = set(numbers)

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in right else ''}>{cell}</{tag}>" for i, cell in enumerate(row)
        )

    top = f"<tr>{cells('th', head)}</tr>" if any(head) else ""
    body = "".join("<tr>" + cells("td", row) + "</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _s(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
