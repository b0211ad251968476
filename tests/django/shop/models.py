"""What the tasks of the tests do to the world, where the tests count it."""

from __future__ import annotations

from django.db import models

from celery_idem.django.fenced import Fenced


class Order(Fenced):
    """An order, and what was done to it."""

    number = models.CharField(max_length=40, unique=True)
    status = models.CharField(max_length=60, default="new")
    total = models.IntegerField(default=0)


class Effect(models.Model):
    """An effect in the database: one row each time that it happened."""

    name = models.CharField(max_length=100)
    note = models.TextField(default="")
