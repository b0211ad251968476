"""How the numbers get out: an HTTP port, a text file, or both."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile

from celery_idem.metrics.settings import MetricsSettings

logger = logging.getLogger("celery_idem.metrics")

#: Seconds between two tries of a port that somebody has: the worker before this one, as a rule.
PORT_AGAIN_S = 5.0


class Serving:
    """Threads of the worker's main process that answer scrapes and write the file."""

    def __init__(self, settings: MetricsSettings, registry: CollectorRegistry, host: str) -> None:
        self._settings = settings
        self._registry = registry
        self._textfile = (settings.textfile or "").replace("{hostname}", host)
        self._over = threading.Event()
        self._server: Any = None

    def start(self) -> None:
        """Begin. A port that is taken stops no worker: it is tried again, and said once."""
        if self._settings.port is not None and not self._listens():
            self._go("idem-metrics-port", self._try_the_port_again)
        if self._textfile:
            self._go("idem-metrics-file", self._write_at_times)

    def stop(self) -> None:
        """The worker ends."""
        self._over.set()
        if self._server is not None:
            threading.Thread(target=self._server.shutdown, daemon=True).start()

    def _listens(self, *, again: bool = False) -> bool:
        settings = self._settings
        assert settings.port is not None
        try:
            self._server, _ = start_http_server(settings.port, settings.address, self._registry)
        except OSError as error:
            if not again:
                logger.error(
                    "metrics: %s:%d can't be listened on (%s); it is tried every %.0f s. Workers "
                    "on one machine need a port each (idem['metrics']['port'])",
                    settings.address, settings.port, error, PORT_AGAIN_S,
                )  # fmt: skip
            return False
        # a child that kept it open would keep the port from the next worker
        os.register_at_fork(after_in_child=self._server.socket.close)
        logger.info("metrics: http://%s:%d/metrics", settings.address, self._server.server_port)
        return True

    def _try_the_port_again(self) -> None:
        while not self._over.wait(PORT_AGAIN_S):
            if self._listens(again=True):
                return

    def _write_at_times(self) -> None:
        failed = False
        while True:
            try:
                write_to_textfile(self._textfile, self._registry)
                failed = False
            except OSError as error:
                if not failed:
                    logger.error("metrics: %s can't be written: %s", self._textfile, error)
                failed = True
            if self._over.wait(self._settings.every_s):
                return

    def _go(self, name: str, what: Any) -> None:
        threading.Thread(target=what, name=name, daemon=True).start()
