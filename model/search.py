"""Breadth first through all states; the first one that breaks a promise is a shortest history."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from model.promises import broken_promise, ended
from model.rules import Rules, Scenario
from model.steps import Model, Step
from model.world import World, canonical


@dataclass(slots=True)
class Found:
    """What a search found."""

    scenario: Scenario
    rules: Rules
    states: int = 0
    steps: int = 0
    depth: int = 0  #: steps of the longest of all shortest histories
    ends: int = 0  #: states in which nothing is left to do
    broken: str = ""  #: the broken promise; empty when all hold
    history: list[Step] = field(default_factory=list)  #: the shortest that breaks it
    again_from: int = 0  #: the history goes on for ever: its last step leads back to this one


def search(scenario: Scenario, rules: Rules | None = None, most: int = 0) -> Found:
    """All states that the scenario can reach, each checked; stops at the first broken promise.

    ``most``: give up after so many states, with :class:`OverflowError`; 0: never.
    """
    rules = rules or Rules()
    model = Model(scenario, rules)
    found = Found(scenario, rules)
    start = canonical(scenario.start())
    number: dict[World, int] = {start: 0}
    parent = [-1]
    depth = [0]
    calm: list[list[int]] = [[]]  #: state → the states that lead to it without a fault
    ends = [0] if ended(start) else []
    queue = deque([start])
    while queue:
        world = queue.popleft()
        here = number[world]
        for step in model.steps(world):
            found.steps += 1
            after = canonical(step.world)
            there = number.get(after)
            if there is None:
                there = number[after] = len(parent)
                parent.append(here)
                depth.append(depth[here] + 1)
                calm.append([])
                if promise := broken_promise(after, scenario):
                    return _refuted(found, model, promise, number, parent, there)
                if ended(after):
                    ends.append(there)
                queue.append(after)
            if not step.fault and there != here:
                calm[there].append(here)
        if most and len(parent) > most:
            raise OverflowError(f"more than {most} states")
    found.states, found.depth, found.ends = len(parent), max(depth), len(ends)
    stuck = _never_ends(calm, ends)
    if stuck is not None:
        promise = "the job never ends, although nothing more goes wrong"
        return _going_round(_refuted(found, model, promise, number, parent, stuck), model)
    return found


def _never_ends(calm: list[list[int]], ends: list[int]) -> int | None:
    """The first state from which no end can be reached without another fault.

    When there is none, every run that is strongly fair (what is possible again and again is done
    some time) and has finitely many faults comes to an end.
    """
    good = bytearray(len(calm))
    todo = list(ends)
    for state in ends:
        good[state] = 1
    while todo:
        for before in calm[todo.pop()]:
            if not good[before]:
                good[before] = 1
                todo.append(before)
    stuck = good.find(0)
    return None if stuck < 0 else stuck


def _refuted(
    found: Found,
    model: Model,
    promise: str,
    number: dict[World, int],
    parent: list[int],
    last: int,
) -> Found:
    found.broken = promise
    found.states = len(parent)
    wanted = {n: world for world, n in number.items()}
    path = [last]
    while parent[path[-1]] >= 0:
        path.append(parent[path[-1]])
    path.reverse()
    found.depth = len(path) - 1
    found.history = _replayed(model, [wanted[n] for n in path])
    return found


def _going_round(found: Found, model: Model) -> Found:
    """Go on from a state that leads to no end, until a state comes again."""
    world = found.history[-1].world if found.history else model.scenario.start()
    seen = {canonical(world): len(found.history)}
    while True:
        step = next((s for s in model.steps(world) if not s.fault), None)
        if step is None:
            return found  # nothing can happen any more, and something is left to do
        found.history.append(step)
        world = step.world
        before = seen.setdefault(canonical(world), len(found.history))
        if before < len(found.history):
            found.again_from = before + 1
            return found


def _replayed(model: Model, path: list[World]) -> list[Step]:
    """The history with every worker under its own name: the search itself mixes them up."""
    world, history = model.scenario.start(), []
    for wanted in path[1:]:
        step = next(s for s in model.steps(world) if canonical(s.world) == wanted)
        history.append(step)
        world = step.world
    return history
