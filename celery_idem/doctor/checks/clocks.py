"""The clocks of workers, or of this machine, differ.

Leases are judged by the store's clock, and stand it. What does not: a countdown or an ETA is an
absolute time by the sender's clock, and the worker's decides when it has come; `expires`
likewise; lanes by deadline compare ages across machines; and kombu's Redis transport, where the
keeper is off, judges visibility timeouts by the sweeper's clock.

Workers are asked by a control command of this package, so only those of apps with an idempotent
task answer.

**Mend it:** let one time service (chrony, systemd-timesyncd) run on all machines.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, NotChecked, Severity
from celery_idem.doctor.fleet import Clock
from celery_idem.doctor.project import Project

#: Seconds that clocks may differ: what no countdown of people cares about.
ALLOWED_S = 2.0
HERE = "this machine"


def look(project: Project) -> Iterator[Finding]:
    clocks = {it.name: it.clock for it in project.servers.fleet.ours if it.clock is not None}
    if not clocks:
        raise NotChecked("no worker told its clock: those that answered do not serve this package")
    clocks[HERE] = Clock(0.0, 0.0)
    first = min(clocks, key=lambda name: clocks[name].ahead_s)
    last = max(clocks, key=lambda name: clocks[name].ahead_s)
    error_s = clocks[first].error_s + clocks[last].error_s
    apart_s = clocks[last].ahead_s - clocks[first].ahead_s
    if apart_s - error_s <= ALLOWED_S:
        return
    yield Finding(
        f"the clock of {last} is {apart_s:.1f} s ahead of that of {first}",
        arithmetic=f"{apart_s:.1f} s, measured to ± {error_s:.1f} s, > {ALLOWED_S:g} s",
        remedy="timedatectl set-ntp true  # on every machine",
        setting="clock",
        value=f"{apart_s:.1f}",
    )


CHECK = Check("IDEM060", "clocks differ", Severity.WARNING, look, asks_servers=True)
