"""What the shop knows: its products and its orders."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from celery_idem.django.fenced import Fenced


class Product(models.Model):
    """Something to buy. ``left`` counts down: done twice, it would be one too few."""

    name = models.CharField(max_length=60, unique=True)
    cents = models.PositiveIntegerField(help_text="Price in cents.")
    left = models.IntegerField(help_text="Pieces in stock.")

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class Order(Fenced):
    """A customer's order. :class:`Fenced` gives it the number of its latest holder, so that a
    worker that was paused and overtaken can't write its status any more."""

    class Status(models.TextChoices):
        ENTERED = "entered"
        PAID = "paid"

    number = models.PositiveBigIntegerField(unique=True)
    product = models.ForeignKey(Product, models.PROTECT)
    cents = models.PositiveIntegerField()
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.ENTERED)
    receipt = models.CharField(max_length=40, blank=True)
    entered_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-entered_at"]

    def __str__(self) -> str:
        return f"order {self.number}"
