"""In which order modules are begun: those that take longest first.

xdist gives whole modules away (``--dist loadfile``), by itself those with most tests first. Ours
with the fewest are among the longest: begun at the end, one process would run them alone while the
others have nothing left to do. Nothing but the length of a run depends on this list.
"""

from __future__ import annotations

from collections import Counter

import pytest

#: Modules that took over a minute, the longest first.
LONGEST = (
    "tests/faults/test_dropped_publishes.py",
    "tests/lanes/test_shares.py",
    "tests/conformance/test_machine.py",
    "tests/faults/test_frozen.py",
    "tests/transport/test_outages.py",
    "tests/lanes/test_control.py",
    "tests/faults/test_kills.py",
    "tests/faults/test_outages.py",
    "tests/faults/test_slow_consumer.py",
    "tests/model/test_model.py",
    "tests/django/test_transactional_steps.py",
    "tests/visibility/test_recovery.py",
    "tests/django/test_jobs.py",
    "tests/metrics/test_metrics.py",
    "tests/tasks/test_pools.py",
    "tests/steps/test_steps.py",
    "tests/cli/test_told.py",
    "tests/lanes/test_simulate.py",
    "tests/transport/test_leases.py",
    "tests/deadletters/test_flood.py",
    "tests/django/test_store.py",
    "tests/tasks/test_once.py",
    "tests/transport/test_lanes.py",
    "tests/doctor/test_servers.py",
    "tests/tuning/test_demo_run.py",
    "tests/tuning/test_checked.py",
    "tests/cli/test_control.py",
    "tests/deadletters/test_cli.py",
    "tests/support_tests/test_rules.py",
    "tests/faults/test_old_locks.py",
    "tests/tasks/test_broadcasts.py",
    "tests/transport/test_worker.py",
)


def module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Sort in place: the longest modules, then those with most tests, each in its own order."""
    sizes = Counter(map(module_of, items))
    ranks = {module: rank for rank, module in enumerate(LONGEST)}

    def place(item: pytest.Item) -> tuple[int, int, str]:
        module = module_of(item)
        return ranks.get(module, len(LONGEST)), -sizes[module], module

    items.sort(key=place)
