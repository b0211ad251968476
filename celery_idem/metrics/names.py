"""The metrics by name, in one table: what the worker exports, the dashboard and the docs show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A counter's samples end in ``_total``."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


CLAIMS = Metric("celery_idem_claims", "Claims granted: bodies that began to run.", ("task",))
COMPLETIONS = Metric("celery_idem_completions", "Runs recorded as done.", ("task",))
RELEASES = Metric(
    "celery_idem_releases", "Claims given back without being done.", ("task", "ending")
)
DUPLICATES = Metric("celery_idem_duplicates", "Deliveries of work that was done before.", ("task",))
CONFLICTS = Metric(
    "celery_idem_conflicts", "Deliveries that met another holder of their key.", ("task", "action")
)
CRASHES = Metric(
    "celery_idem_crashes", "Claims that ended by a lost process or an expired lease.", ("task",)
)
LEASE_LOSSES = Metric(
    "celery_idem_lease_losses", "Runs that lost their key to another holder.", ("task",)
)
LETTERS = Metric(
    "celery_idem_letters", "Messages that became dead letters.", ("task", "reason", "lane")
)
FLOODS = Metric("celery_idem_floods", "Alarms of flood_per_minute.", ("task",))

COUNTERS = (
    CLAIMS,
    COMPLETIONS,
    RELEASES,
    DUPLICATES,
    CONFLICTS,
    CRASHES,
    LEASE_LOSSES,
    LETTERS,
    FLOODS,
)

DEPTH = Metric("celery_idem_lane_depth", "Messages that wait in the lane's queue.", ("lane",))
OLDEST = Metric(
    "celery_idem_lane_oldest_seconds", "Age of the oldest of them; 0: none waits.", ("lane",)
)
RUNNING = Metric("celery_idem_lane_running", "Jobs of the lane in this worker.", ("lane",))
PAUSED = Metric("celery_idem_lane_paused", "1: this worker starts none of the lane.", ("lane",))
STORED = Metric("celery_idem_letters_stored", "Dead letters in the store now.")
BROKER_UP = Metric("celery_idem_broker_up", "0: depths could not be asked for.")
STORE_UP = Metric("celery_idem_letter_store_up", "0: the letters could not be counted.")

GAUGES = (DEPTH, OLDEST, RUNNING, PAUSED, STORED, BROKER_UP, STORE_UP)
