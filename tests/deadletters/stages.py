"""A stage whose letters are kept in one of the stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.tasks.stage import Stage, open_stage

#: in Redis, or in the database of this alias
PLACES: list[Any] = [
    "redis",
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=(pytest.mark.mariadb, pytest.mark.slow)),
]
APP = "tests.apps.letters"


@contextmanager
def letters_stage(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    place: str,
    store: str = "django",
    **idem: Any,
) -> Iterator[Stage]:
    """The app of ``tests/apps/letters.py``. In a database, records are kept as ``store`` says, and
    letters where they are by default."""
    if place == "redis":
        with open_stage(tmp_path_factory, APP, TEST_IDEM=json.dumps(idem)) as stage:
            yield stage
        return
    need: Callable[[str], str] = request.getfixturevalue("django_databases")
    need(place)
    from tests.django.databases import as_default, emptied, url_of

    emptied(place)
    settings = json.dumps({"store": store, **idem})
    with pytest.MonkeyPatch.context() as patch:
        as_default(place, {}, patch)
        env = {"TEST_DJANGO": "1", "TEST_DATABASE_URL": url_of(place), "TEST_IDEM": settings}
        with open_stage(tmp_path_factory, APP, **env) as stage:
            yield stage
