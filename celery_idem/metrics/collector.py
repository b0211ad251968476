"""The numbers of one worker as Prometheus reads them, at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from celery_idem.binding import binding_of
from celery_idem.lanes.routing import lanes_of
from celery_idem.metrics import names
from celery_idem.metrics.asking import Asking
from celery_idem.metrics.counts import Counts

#: Labels of one sample, and its value.
Sample = tuple[tuple[str, ...], float]


class WorkerCollector:
    """A collector for any registry of ``prometheus_client`` in the worker's main process."""

    def __init__(self, consumer: Any, counts: Counts, asking: Asking) -> None:
        self._consumer = consumer
        self._counts = counts
        self._asking = asking

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        totals = self._counts.totals()
        for metric in names.COUNTERS:
            family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for (name, *values), count in sorted(totals.items()):
                if name == metric.name:
                    family.add_metric(values, count)
            yield family
        yield from self._of_the_lanes()
        yield from self._of_the_letters()

    def _of_the_lanes(self) -> Iterator[Metric]:
        lanes = self._lanes()
        states = self._asking.queues(lanes)
        yield _gauge(names.BROKER_UP, [((), float(states is not None))])
        found = states or {}
        yield _gauge(
            names.DEPTH,
            [((lane,), it.depth) for lane, it in found.items() if it.depth is not None],
        )
        yield _gauge(
            names.OLDEST,
            [
                ((lane,), it.oldest_s or 0.0)
                for lane, it in found.items()
                if it.oldest_s is not None or it.depth == 0
            ],
        )
        line = getattr(self._consumer.idem_lanes, "line", None)
        if line is not None:
            running = dict(line.running)
            yield _gauge(names.RUNNING, [((lane,), running.get(lane, 0)) for lane in lanes])
        paused = set(line.paused) if line is not None else set()
        paused |= {it.queue for it in self._consumer.idem_breaker.pauses()}
        yield _gauge(
            names.PAUSED,
            [((lane,), float(lane in paused or queue in paused)) for lane, queue in lanes.items()],
        )

    def _of_the_letters(self) -> Iterator[Metric]:
        stored = self._asking.letters()
        yield _gauge(names.STORE_UP, [((), float(stored is not None))])
        if stored is not None:
            yield _gauge(names.STORED, [((), stored)])

    def _lanes(self) -> Mapping[str, str]:
        """Lane → queue: the app's lanes, or this worker's queues as lanes of their own names."""
        app = self._consumer.app
        lanes = lanes_of(binding_of(app).settings)
        if lanes:
            return {lane.name: lane.queue for lane in lanes}
        return {queue: queue for queue in list(app.amqp.queues.consume_from)}


def registry_of(collector: WorkerCollector) -> CollectorRegistry:
    """A registry that holds this collector alone: what else the process counts is not ours."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)  # type: ignore[arg-type,unused-ignore]
    return registry


def _gauge(metric: names.Metric, samples: Iterable[Sample]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family
