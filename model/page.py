"""The parts of ``docs/model.md`` that a run writes: what was searched, and the refutations."""

from __future__ import annotations

import re
from collections.abc import Iterable

from model.broken import VARIANTS, Broken
from model.rules import Scenario
from model.search import Found, search
from model.timeline import timeline

_PART = "<!-- {mark} {name}: written by `python -m model --write`, see model/page.py -->"


def replaced(page: str, name: str, content: str) -> str:
    """The page with that part anew. Raises ``ValueError`` when it has no such part."""
    begin, end = _PART.format(mark="begin", name=name), _PART.format(mark="end", name=name)
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    whole = f"{begin}\n{content}\n{end}"
    text, times = re.subn(pattern, lambda _: whole, page, flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"the page has {times} parts named {name!r}, and should have one: {begin}")
    return text


def searched(found: Iterable[Found]) -> str:
    """A table of what was searched without finding anything."""
    lines = [
        "| scenario | workers | faults, at most | retries | poison at | states | steps | longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    states = steps = 0
    for each in found:
        states, steps = states + each.states, steps + each.steps
        s = each.scenario
        lines.append(
            f"| {s.name} | {s.workers} | {s.faults} | {s.max_retries} | {s.max_crashes} "
            f"| {each.states:,} | {each.steps:,} | {each.depth} |"
        )
    lines.append(f"| **together** | | | | | **{states:,}** | **{steps:,}** | |")
    return "\n".join(lines)


def all_found(scenarios: Iterable[Scenario]) -> list[Found]:
    """Search them; a broken promise is an error."""
    found = [search(scenario) for scenario in scenarios]
    for each in found:
        if each.broken:
            raise AssertionError(timeline(each))
    return found


def refuted(variants: Iterable[Broken] = VARIANTS) -> str:
    """A heading and a timeline for each broken variant."""
    return "\n\n".join(_refutation(variant) for variant in variants)


def _refutation(variant: Broken) -> str:
    found = search(variant.scenario, variant.rules)
    name = variant.rules.name
    heading = f"### {name[0].upper()}{name[1:]}"
    said = f"Breaks: *{found.broken}*. Found after {found.states:,} states."
    return f"{heading}\n\n{said}\n\n```text\n{timeline(found)}\n```"
