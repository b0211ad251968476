"""The worker's side: counts from before the pool forks, and serves once the worker consumes."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_idem.binding import binding_of
from celery_idem.core.errors import ConfigError
from celery_idem.metrics.settings import MetricsSettings


class MetricsStep(bootsteps.StartStopStep):
    """Consumer bootstep: does nothing without ``idem["metrics"]``."""

    name = "celery_idem.metrics"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._serving: Any = None
        settings = MetricsSettings.from_dict(binding_of(consumer.app).settings.metrics)
        if settings.wanted:
            self._prepare(consumer, settings)

    def _prepare(self, consumer: Any, settings: MetricsSettings) -> None:
        try:
            from celery_idem.metrics.collector import WorkerCollector, registry_of
            from celery_idem.metrics.serving import Serving
        except ImportError as error:
            raise ConfigError(
                "idem: metrics need prometheus-client: pip install 'celery-idem[metrics]'"
            ) from error
        from celery_idem.metrics.asking import Asking
        from celery_idem.metrics.counts import Counts
        from celery_idem.metrics.hearing import listen

        self._counts = Counts()
        has_children = consumer.controller.pool_cls.__module__.endswith("prefork")
        listen(self._counts, has_children=has_children)
        self._asking = Asking(consumer.app)
        collector = WorkerCollector(consumer, self._counts, self._asking)
        host = str(consumer.hostname or "")
        self._serving, self._begun = Serving(settings, registry_of(collector), host), False

    def start(self, consumer: Any) -> None:
        """After a lost connection, too: what serves goes on meanwhile."""
        if self._serving is not None and not self._begun:
            self._begun = True
            self._serving.start()

    def stop(self, consumer: Any) -> None:
        """The consumer stops, also when it only reconnects."""

    def shutdown(self, consumer: Any) -> None:
        """The worker ends."""
        if self._serving is not None:
            self._serving.stop()
            self._asking.close()
            self._counts.close()
