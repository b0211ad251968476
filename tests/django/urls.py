"""The admin, and views that the tests call under ATOMIC_REQUESTS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpResponse
from django.urls import path

#: What the view at ``/test/`` does: set by a test.
view: list[Callable[[Any], str]] = []


def called(request: Any) -> HttpResponse:
    return HttpResponse(view[-1](request))


urlpatterns = [path("admin/", admin.site.urls), path("test/", called)]
