"""The shop in the admin. The records of its jobs are there by ``celery_idem.django``."""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from example_project.shop.models import Order, Product

admin.site.site_header = admin.site.site_title = "Shop"


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Products and what is left of them."""

    list_display = ("name", "cents", "left")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Orders; the jobs alone write them."""

    list_display = ("number", "product", "cents", "status", "receipt", "fence", "entered_at")
    list_filter = ("status", "product")
    search_fields = ("=number", "receipt")
    readonly_fields = list_display
    list_select_related = ("product",)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False
