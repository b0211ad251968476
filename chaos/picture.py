"""The timeline of a run as an SVG: faults above jobs per second."""

from __future__ import annotations

from collections import Counter
from html import escape

from chaos.faults import Happening
from chaos.run import Outcome
from chaos.schedule import SERVER, Kind

WIDTH, LEFT, LANE, GAP, GRAPH = 1000, 96, 17, 12, 130

COLOURS: dict[Kind, str] = {
    Kind.KILL_TREE: "#a40e26", Kind.KILL_PARENT: "#cf222e", Kind.KILL_CHILD: "#fa4549",
    Kind.OUT_OF_MEMORY: "#ff8182", Kind.FREEZE_TREE: "#0550ae", Kind.FREEZE_PARENT: "#218bff",
    Kind.CUT: "#7d4e00", Kind.SLOW: "#d4a72c", Kind.DROPPED_ACKS: "#953800",
    Kind.DROPPED_ANSWERS: "#e16f24", Kind.CLOCK: "#8250df", Kind.DEPLOY: "#1a7f37",
    Kind.SERVER_KILL: "#a40e26", Kind.SERVER_RESTART: "#1a7f37", Kind.SERVER_FREEZE: "#0550ae",
    Kind.DISK_FULL: "#57606a", Kind.DISK_FULL_REFUSES: "#8c959f", Kind.FAILOVER: "#bf3989",
}  # fmt: skip


def timeline(outcome: Outcome) -> str:
    """One row for each worker and one for the server; below, the jobs done in each second."""
    targets = [SERVER, *range(outcome.plan.workers)]
    top = len(targets) * LANE + GAP
    span = outcome.ended - outcome.began
    scale = (WIDTH - LEFT) / span
    height = top + GRAPH + 24
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" font-size="11" font-family="system-ui, sans-serif">'
    ]
    for row, target in enumerate(targets):
        name = "server" if target == SERVER else f"worker {target}"
        parts.append(f'<text x="0" y="{row * LANE + 12}" fill="#57606a">{name}</text>')
        parts += [
            _bar(happening, outcome.began, row, scale)
            for happening in outcome.happenings
            if happening.fault.target == target
        ]
    parts += _graph(outcome, top, span, scale)
    parts += _axis(span, scale, top + GRAPH)
    return "\n".join([*parts, "</svg>", _legend(outcome)])


def _bar(happening: Happening, began: float, row: int, scale: float) -> str:
    x = LEFT + (happening.began - began) * scale
    width = max(2.5, (happening.ended - happening.began) * scale)
    colour = COLOURS[happening.fault.kind]
    title = f"{happening.fault} {happening.remark}".strip()
    return (
        f'<rect x="{x:.1f}" y="{row * LANE + 2}" width="{width:.1f}" height="{LANE - 5}" '
        f'fill="{colour}"><title>{escape(title)}</title></rect>'
    )


def _graph(outcome: Outcome, top: int, span: float, scale: float) -> list[str]:
    seconds = Counter(
        int(float(line["monotonic"]) - outcome.began)
        for line in outcome.lines
        if line["what"] == "completed"
    )
    most = max(seconds.values(), default=1)
    points = " ".join(
        f"{LEFT + second * scale:.1f},{top + GRAPH - seconds[second] / most * GRAPH:.1f}"
        for second in range(int(span) + 1)
    )
    calm = LEFT + (outcome.calm - outcome.began) * scale
    return [
        f'<polyline points="{points}" fill="none" stroke="#1c2128" stroke-width="0.9"/>',
        f'<text x="0" y="{top + 12}" fill="#57606a">jobs per second</text>',
        f'<text x="0" y="{top + 26}" fill="#57606a">(most: {most})</text>',
        f'<line x1="{calm:.1f}" x2="{calm:.1f}" y1="0" y2="{top + GRAPH}" stroke="#57606a" '
        'stroke-dasharray="3 3"/>',
    ]


def _axis(span: float, scale: float, y: int) -> list[str]:
    step = next((s for s in (10, 30, 60, 120, 300) if span / s <= 12), 600)
    marks = [
        f'<text x="{LEFT + at * scale:.1f}" y="{y + 16}" fill="#57606a">{at} s</text>'
        for at in range(0, int(span) + 1, step)
    ]
    return [f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y}" y2="{y}" stroke="#d8dee4"/>', *marks]


def _legend(outcome: Outcome) -> str:
    kinds = sorted(
        {happening.fault.kind for happening in outcome.happenings}, key=lambda k: k.value
    )
    items = " &nbsp; ".join(
        f'<span style="color:{COLOURS[kind]}">■</span> {kind.value}' for kind in kinds
    )
    return f"<p><small>{items} &nbsp; ┆ no more faults from here on</small></p>"
