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


def in_place(
    request: pytest.FixtureRequest, place: str, patch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What the app's module reads to have its letters there; a database is the default one here,
    emptied, and in processes that are started with this."""
    if place == "redis":
        return {}
    need: Callable[[str], str] = request.getfixturevalue("django_databases")
    need(place)
    from tests.django.databases import as_default, emptied, url_of

    emptied(place)
    as_default(place, {}, patch)
    return {"TEST_DJANGO": "1", "TEST_DATABASE_URL": url_of(place)}


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
    if place != "redis":
        idem["store"] = store
    with pytest.MonkeyPatch.context() as patch:
        env = in_place(request, place, patch)
        with open_stage(tmp_path_factory, APP, TEST_IDEM=json.dumps(idem), **env) as stage:
            yield stage
