"""What only servers and workers can tell. Each is asked once; no answer is no finding, but said."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_idem.doctor.project import Project


class Servers:
    """Answers of the project's servers."""

    def __init__(self, project: Project, *, rabbitmq_api: str | None = None) -> None:
        self._project = project
        self.rabbitmq_api = rabbitmq_api
