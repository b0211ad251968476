"""The dashboard and the page of metrics name what the worker exports: all of it, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from celery_idem.metrics import names

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAME = re.compile(r"celery_idem_[a-z_]+")

EXPORTED = {f"{it.name}_total" for it in names.COUNTERS} | {it.name for it in names.GAUGES}
LABELS = {
    **{f"{it.name}_total": set(it.labels) for it in names.COUNTERS},
    **{it.name: set(it.labels) for it in names.GAUGES},
}


def dashboard() -> dict[str, Any]:
    return dict(json.loads((DOCS / "grafana-dashboard.json").read_text()))


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def test_the_dashboard_shows_every_metric_and_only_those() -> None:
    shown = {name for expression in expressions() for name in NAME.findall(expression)}

    assert shown == EXPORTED


def test_the_dashboard_divides_by_labels_that_the_metric_has() -> None:
    for expression in expressions():
        [name] = NAME.findall(expression)
        for by in re.findall(r"by \(([^)]*)\)", expression):
            assert {it.strip() for it in by.split(",")} <= LABELS[name], expression


def test_a_legend_names_only_labels_that_are_left() -> None:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            left = set(re.findall(r"by \(([^)]*)\)", target["expr"])[:1])
            left = {it.strip() for by in left for it in by.split(",")}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left, target["expr"]


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({it["id"] for it in panels}) == len(panels)
    cells = [
        (x, y)
        for it in panels
        for x in range(it["gridPos"]["x"], it["gridPos"]["x"] + it["gridPos"]["w"])
        for y in range(it["gridPos"]["y"], it["gridPos"]["y"] + it["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_page_lists_every_metric_with_its_labels() -> None:
    page = (DOCS / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(celery_idem_[a-z_]+)` \|([^|]*)\|", page, re.MULTILINE))

    assert set(rows) == EXPORTED
    assert {name: set(re.findall(r"`(\w+)`", row)) for name, row in rows.items()} == LABELS


def test_alarms_of_the_page_name_what_is_there() -> None:
    page = (DOCS / "metrics.md").read_text()

    assert {it for it in NAME.findall(page) if it in EXPORTED} == set(NAME.findall(page))
