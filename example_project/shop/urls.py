"""The shop's front page, and the admin."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from example_project.shop import views

urlpatterns = [
    path("", views.front, name="front"),
    path("buy/", views.buy, name="buy"),
    path("admin/", admin.site.urls),
]
