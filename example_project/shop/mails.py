"""Mails to customers, and the way they go out."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from example_project.shop.payments import post


def send_receipt(number: int, receipt: str, message_id: str) -> None:
    """Tell the customer that the order is paid.

    A mail can't be taken back, and no mail server asks for a key: a worker that is killed between
    sending and its record sends it once more. With the same ``Message-ID``, by which many mail
    programs show the two as one.
    """
    EmailMessage(
        subject=f"Your order {number}",
        body=f"Thank you. Your receipt is {receipt}.",
        to=[f"customer-of-{number}@mail.example"],
        headers={"Message-ID": f"<{message_id}@shop.example>", "X-Order": str(number)},
    ).send()


def send_login_code(customer: str, code: str) -> None:
    """The code with which a customer logs in."""
    EmailMessage(subject="Your code", body=code, to=[customer]).send()


class ProviderBackend(BaseEmailBackend):
    """Hands mails to ``settings.MAIL_PROVIDER``, as the packages of mail providers do."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Send them; returns how many. Raises :class:`.payments.Unreachable`."""
        for mail in email_messages:
            message = {"to": mail.to, "subject": mail.subject, "headers": mail.extra_headers}
            post(settings.MAIL_PROVIDER, "/mails", message)
        return len(email_messages)
