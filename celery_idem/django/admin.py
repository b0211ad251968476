"""Records in the admin: to be read; released and revoked with permission and confirmation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from celery import current_app
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join

from celery_idem.binding import store_of
from celery_idem.core.describe import described_result, described_step, when
from celery_idem.core.errors import IdemError
from celery_idem.core.record import State
from celery_idem.core.settings import DEFAULT_REVOKE_S
from celery_idem.django import letters_admin  # noqa: F401 - registers the dead letters
from celery_idem.django.models import InboxEntry, KeyRecord, digest_of

#: State → the colour of its label; readable on white and on the admin's dark ground.
_COLOURS = {
    State.FREE: "#5b6770",
    State.RUNNING: "#1f6fb2",
    State.WAITING: "#9a6700",
    State.DONE: "#1a7f37",
}
_REVOKED_COLOUR = "#b42318"
#: Characters of a task id in the list; the whole one is its tooltip and in the record.
SHORT_ID = 8


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Nothing is added, changed or deleted by hand: the store alone writes these tables."""

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


class StateFilter(admin.SimpleListFilter):
    """By state, and what an operator looks for."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [
            *((s.value, s.value) for s in State),
            ("revoked", "revoked"),
            ("crashed", "crashed"),
        ]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> Any:
        match self.value():
            case None:
                return queryset
            case "revoked":
                return queryset.filter(revoked=True)
            case "crashed":
                return queryset.filter(crashes__gt=0)
            case state:
                return queryset.filter(state=state)


@admin.register(KeyRecord)
class KeyRecordAdmin(ReadOnly):
    """Searchable by key and task id; a task's keys begin with its name."""

    list_display = (
        "key", "label", "runs", "crashes", "failures", "step_number", "expires", "short_task_id",
    )  # fmt: skip
    list_filter = (StateFilter,)
    search_fields = ("key", "task_id")
    search_help_text = "A part of the key, which begins with the task's name, or of the task id."
    show_full_result_count = False
    actions = ("release", "revoke")
    fields = (
        "key", "label", "task_id", "attempt", "fence", "runs", "crashes", "failures", "releases",
        "created", "lease_until", "done", "expires", "fingerprint", "described_result",
        "handed_on", "steps_table",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: Any) -> QuerySet[Any]:
        """Without what is left of forgotten records."""
        found: QuerySet[Any] = super().get_queryset(request).filter(created_ms__gt=0)
        return found

    @transaction.non_atomic_requests
    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Not in a transaction of the request (ATOMIC_REQUESTS): what an action does to a key stays
        done, and SQLite has one writer."""
        return super().changelist_view(request, extra_context)

    @admin.display(description="state", ordering="state")
    def label(self, record: KeyRecord) -> str:
        colour = _COLOURS.get(State(record.state), "#5b6770")
        mark = '<span style="white-space:nowrap"><b style="color:{}">●</b> {}</span>'
        shown = format_html(mark, colour, record.state)
        if record.revoked:
            shown += format_html(" " + mark, _REVOKED_COLOUR, "revoked")
        return shown

    @admin.display(description="task id")
    def short_task_id(self, record: KeyRecord) -> str:
        task_id = str(record.task_id)
        if len(task_id) <= SHORT_ID:
            return task_id or "-"
        return format_html('<abbr title="{}">{}…</abbr>', task_id, task_id[:SHORT_ID])

    @admin.display(description="steps")
    def step_number(self, record: KeyRecord) -> int:
        return int(record.step_count)

    @admin.display(description="handed on")
    def handed_on(self, record: KeyRecord) -> str:
        """Task ids whose links, chain and chord part were handed on."""
        return ", ".join(json.loads(record.settled)) or "-"

    @admin.display(description="created", ordering="created_ms")
    def created(self, record: KeyRecord) -> str:
        return when(record.created_ms) or "-"

    @admin.display(description="done", ordering="done_ms")
    def done(self, record: KeyRecord) -> str:
        return when(record.done_ms) or "-"

    @admin.display(description="lease until")
    def lease_until(self, record: KeyRecord) -> str:
        return when(record.lease_until_ms) or "-"

    @admin.display(description="expires", ordering="expires_ms")
    def expires(self, record: KeyRecord) -> str:
        return when(record.expires_ms) or "-"

    @admin.display(description="result")
    def described_result(self, record: KeyRecord) -> str:
        packed = record.result
        return described_result(None if packed is None else bytes(packed)) or "-"

    @admin.display(description="steps")
    def steps_table(self, record: Any) -> str:
        steps = [(step.name, described_step(bytes(step.value))) for step in record.steps.all()]
        digests = [digest_of(record.key, name) for name, _ in steps]
        inbox = {entry.name for entry in InboxEntry.objects.filter(digest__in=digests)}
        rows = [
            (name, how, "in its own transaction" if name in inbox else "") for name, how in steps
        ]
        if not rows:
            return "-"
        body = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td></tr>", rows)
        return format_html(
            "<table><thead><tr><th>step</th><th>how it stands</th><th></th></tr></thead>{}</table>",
            body,
        )

    # --- actions ---------------------------------------------------------------------------

    def has_release_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("celery_idem.release_keyrecord"))

    def has_revoke_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("celery_idem.revoke_keyrecord"))

    @admin.action(description="Release the selected keys", permissions=["release"])
    def release(self, request: Any, queryset: QuerySet[Any]) -> TemplateResponse | None:
        """Whoever holds them does no longer; crashes and revocations are forgiven."""
        return self._confirmed(
            request,
            queryset,
            "release",
            "Release these keys",
            "Whoever holds them does no longer, and the next delivery runs. Crashes and "
            "revocations are forgiven; done steps stay done. Keys that are done stay as they are.",
            lambda key: store_of(current_app).free(key),
        )

    @admin.action(description="Revoke the selected keys", permissions=["revoke"])
    def revoke(self, request: Any, queryset: QuerySet[Any]) -> TemplateResponse | None:
        """They are not run again."""

        def revoke_one(key: str) -> bool:
            store_of(current_app).revoke(key, round(DEFAULT_REVOKE_S * 1000))
            return True

        return self._confirmed(
            request,
            queryset,
            "revoke",
            "Revoke these keys",
            "They are not run again for 30 days: not by a delivery, a retry or a replay. What runs "
            "now is not stopped. Releasing a key takes it back.",
            revoke_one,
        )

    def _confirmed(
        self,
        request: Any,
        queryset: QuerySet[Any],
        action: str,
        title: str,
        consequence: str,
        act: Callable[[str], bool],
    ) -> TemplateResponse | None:
        """Ask first; then act on each key through the store, as the commands do."""
        if not getattr(self, f"has_{action}_permission")(request):
            raise PermissionDenied
        if request.POST.get("confirmed") != "yes":
            context = {
                **self.admin_site.each_context(request),
                "title": title,
                "consequence": consequence,
                "records": queryset,
                "action": action,
                "opts": self.opts,
            }
            return TemplateResponse(request, "admin/celery_idem/keyrecord/confirm.html", context)
        try:
            acted = sum(self._acted(request, record, action, act) for record in queryset)
        except IdemError as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        left = len(queryset) - acted
        text = f"{action}d: {acted}" + (f"; left as they are, since done: {left}" if left else "")
        self.message_user(request, text, messages.SUCCESS if acted else messages.WARNING)
        return None

    def _acted(
        self, request: Any, record: KeyRecord, action: str, act: Callable[[str], bool]
    ) -> bool:
        """Act, and write down who did: the record's history, and the admin's recent actions."""
        done = act(str(record.key))
        if done:
            self.log_change(request, record, f"{action}d")
        return done


@admin.register(InboxEntry)
class InboxEntryAdmin(ReadOnly):
    """Transactional steps of the default database."""

    list_display = ("key", "name", "how", "fence", "created")
    search_fields = ("key", "name")
    show_full_result_count = False
    fields = ("key", "name", "how", "fence", "created")
    readonly_fields = fields

    @admin.display(description="how it stands")
    def how(self, entry: InboxEntry) -> str:
        return described_step(bytes(entry.value))

    @admin.display(description="created", ordering="created_ms")
    def created(self, entry: InboxEntry) -> str:
        return when(entry.created_ms) or "-"
