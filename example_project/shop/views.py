"""The front page, and the button "buy"."""

from __future__ import annotations

import secrets

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from example_project.shop.models import Order, Product
from example_project.shop.tasks import complete_order

#: Orders on the front page.
SHOWN = 20


@require_GET
def front(request: HttpRequest) -> HttpResponse:
    """Products, and the orders of this visitor."""
    mine = request.session.get("orders", [])
    known = {order.number: order for order in Order.objects.filter(number__in=mine)}
    orders = [(number, known.get(number)) for number in reversed(mine)]
    return render(
        request,
        "shop/front.html",
        {
            "products": Product.objects.all(),
            "orders": orders[:SHOWN],
            # chosen when the page is shown: the same button pressed twice is the same order
            "number": secrets.randbelow(10**9) + 10**6,
        },
    )


@require_POST
def buy(request: HttpRequest) -> HttpResponse:
    """Send the order's job when this request's transaction commits, and not when it rolls back."""
    product = get_object_or_404(Product, name=request.POST.get("product"))
    try:
        number = int(request.POST.get("number", ""))
    except ValueError:
        return HttpResponse("which order?", status=400)
    mine = request.session.setdefault("orders", [])
    if number not in mine:
        mine.append(number)
        request.session.modified = True
    complete_order.delay_on_commit(number, product.name, product.cents)
    return redirect("front")
