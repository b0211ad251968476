"""Dead letters in the admin, wherever they are kept: every page asks the app's letter store.

What Django's own list would do on a table is done on the store's contract instead, so that letters
in Redis, where they are by default, are shown like those in the database; and nothing is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from celery import current_app
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, path, reverse

from celery_idem.binding import binding_of
from celery_idem.core.describe import when
from celery_idem.core.errors import IdemError
from celery_idem.deadletters import describe
from celery_idem.deadletters.base import Filter, LetterStore
from celery_idem.deadletters.choose import letter_settings_of, quick_letters_of
from celery_idem.deadletters.letter import Letter
from celery_idem.deadletters.replay import How
from celery_idem.django import letters_acting as acting
from celery_idem.django.letters_query import AGES, Query
from celery_idem.django.models import DeadLetter, KeyRecord, digest_of

_TEMPLATES = "admin/celery_idem/deadletter"

#: action → (its words, the permission that it needs, what the confirmation says)
ACTIONS: dict[str, tuple[str, str, str]] = {
    "replay": (
        "Replay",
        "replay_deadletter",
        "The messages go back to their queues as they were, under their own ids; done steps stay "
        "done.",
    ),
    "canary": (
        "Replay with canary",
        "replay_deadletter",
        "Some are sent first. The rest is sent when those have ended well, within "
        f"{acting.CANARY_WAIT_S:g} seconds.",
    ),
    "delete": (
        "Delete",
        "delete_deadletter",
        "They are gone for good. Export them first, if you may want them back: "
        "manage.py dlq export.",
    ),
}

View = Callable[..., HttpResponse]


def permitted(view: View) -> View:
    """For those who may see letters; an error of this package is told on the page.

    Not in a transaction of the request (ATOMIC_REQUESTS): what is done to a letter stays done, and
    SQLite has one writer.
    """

    @wraps(view)
    def inner(self: Any, request: Any, *args: Any, **options: Any) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return view(self, request, *args, **options)
        except IdemError as error:
            self.message_user(request, str(error), messages.ERROR)
            return _page(self, request, "unreachable", "Dead letters", status=503)

    unwrapped: View = transaction.non_atomic_requests(inner)
    return unwrapped


@admin.register(DeadLetter)
class DeadLetterAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """List, groups and letters; replayed and deleted with permission and confirmation."""

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False  # not as a row: as a letter, by the action

    def get_urls(self) -> list[Any]:
        groups = path("groups/", self.admin_site.admin_view(self.groups_view), name=_name("groups"))
        return [groups, *super().get_urls()]

    # --- pages -----------------------------------------------------------------------------

    @permitted
    def changelist_view(self, request: Any, extra_context: Any = None) -> HttpResponse:
        """The letters of a filter, the newest first; its form asks for an action."""
        query, store = Query(request.GET), quick_letters_of(current_app)
        if request.method == "POST":
            return self._acted(request, query, store)
        letters, next_page = query.page(store)
        return _page(
            self, request, "letters", "Dead letters",
            letters=[_row(it) for it in letters],
            next_page=next_page,
            first_page=query.address() if query.after else "",
            filters=query.side_bar(store),
            said=query.said,
            actions=[(name, ACTIONS[name][0]) for name in self._actions_of(request)],
            most=acting.MOST_AT_ONCE,
        )  # fmt: skip

    @permitted
    def groups_view(self, request: Any) -> HttpResponse:
        """Letters by fault: error type and the place that raised it."""
        query = Query({"age": request.GET.get("age", ""), "task": request.GET.get("task", "")})
        groups = quick_letters_of(current_app).groups(query.filter())
        return _page(
            self, request, "groups", "Dead letters by fault",
            groups=[
                {"it": it, "first": when(it.first_ms), "last": when(it.last_ms),
                 "address": query.address(group=it.group)}
                for it in groups
            ],
            total=sum(it.count for it in groups),
            ages=[("", "any age"), *((name, words) for name, (words, _, _) in AGES.items())],
            age=query.said.get("age", ""),
        )  # fmt: skip

    @permitted
    def change_view(
        self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """One letter; of a replayed one, its history."""
        store = quick_letters_of(current_app)
        letter = store.get(object_id)
        trail = letter.history if letter else store.trail(object_id)
        log = acting.logged(object_id)
        if letter is None and not trail and not log:
            raise Http404(f"no letter {object_id}")
        return _page(
            self, request, "letter", f"Dead letter {object_id}",
            letter=letter,
            row=_row(letter) if letter else None,
            facts=_facts(letter) if letter else [],
            arguments=_arguments(letter) if letter else "",
            relatives=_relatives(store, letter) if letter else [],
            record=_record_address(letter, self.admin_site.name) if letter else "",
            history=[(when(it.at_ms), it.what, it.by, it.detail) for it in trail],
            log=log,
            actions=[(name, ACTIONS[name][0]) for name in self._actions_of(request)],
        )  # fmt: skip

    # --- actions ---------------------------------------------------------------------------

    def _actions_of(self, request: Any) -> list[str]:
        return [
            name
            for name, (_, permission, _) in ACTIONS.items()
            if request.user.has_perm(f"celery_idem.{permission}")
        ]

    def _acted(self, request: Any, query: Query, store: LetterStore) -> HttpResponse:
        """Ask first; then do it."""
        action, form = request.POST.get("action", ""), request.POST
        if action not in ACTIONS:
            return self._back(request, query, "Choose an action.", messages.WARNING)
        if action not in self._actions_of(request):
            raise PermissionDenied
        ids = tuple(form.getlist("_selected_action"))[: acting.MOST_AT_ONCE]
        across = form.get("across") == "1"
        if not ids and not across:
            return self._back(request, query, "Choose the letters first.", messages.WARNING)
        wanted = query.filter() if across and not ids else Filter(ids=ids)
        letters = acting.chosen(current_app, wanted)
        if form.get("confirmed") != "yes":
            return self._confirmation(request, query, action, letters)
        told = self._do(request, action, letters)
        level = messages.SUCCESS if told.well else messages.WARNING
        return self._back(request, query, told.text, level)

    def _do(self, request: Any, action: str, letters: list[Letter]) -> acting.Told:
        if action == "delete":
            return acting.delete(current_app, request.user, letters)
        how = How(by=acting.operator(request.user))
        if action == "canary":
            canary = _whole(request.POST.get("canary"), acting.DEFAULT_CANARY, 1)
            how = replace(
                how,
                canary=min(canary, len(letters)),
                max_failures=_whole(request.POST.get("max_failures"), 0, 0),
                canary_wait_s=acting.CANARY_WAIT_S,
            )
        return acting.replay(current_app, request.user, letters, how)

    def _confirmation(
        self, request: Any, query: Query, action: str, letters: list[Letter]
    ) -> HttpResponse:
        words, _, consequence = ACTIONS[action]
        foretold = acting.foretold(current_app, letters) if action != "delete" else []
        return _page(
            self, request, "confirm", f"{words}: {len(letters)} dead letters",
            action=action,
            words=words,
            consequence=consequence,
            foretold=foretold,
            letters=[_row(it) for it in letters],
            at_most=acting.MOST_AT_ONCE if len(letters) == acting.MOST_AT_ONCE else 0,
            canary=acting.DEFAULT_CANARY,
            back=query.address(),
        )  # fmt: skip

    def _back(self, request: Any, query: Query, text: str, level: int) -> HttpResponse:
        self.message_user(request, text, level)
        listed = reverse(f"admin:{_name('changelist')}", current_app=self.admin_site.name)
        return HttpResponseRedirect(listed + query.address())


def _page(
    of: Any, request: Any, template: str, title: str, status: int = 200, **context: Any
) -> HttpResponse:
    """One of the model's pages, with what every page of the admin has."""
    site = of.admin_site
    given = {**site.each_context(request), "title": title, "opts": of.opts, **context}
    request.current_app = site.name
    return TemplateResponse(request, f"{_TEMPLATES}/{template}.html", given, status=status)


def _name(view: str) -> str:
    return f"{DeadLetter._meta.app_label}_{DeadLetter._meta.model_name}_{view}"


def _row(letter: Letter) -> dict[str, Any]:
    """What a list says of a letter."""
    fault = letter.fault
    return {
        "id": letter.id,
        "died": when(letter.last_died_ms),
        "reason": letter.reason.value,
        "state": describe.STATES[letter.state],
        "task": letter.task or "unknown",
        "queue": letter.message.queue,
        "times": letter.times,
        "error": f"{fault.error_type}: {fault.message}".strip(": "),
        "group": fault.group,
    }


def _facts(letter: Letter) -> list[tuple[str, str]]:
    lane = f" (lane {letter.lane})" if letter.lane else ""
    return [
        ("reason", letter.reason.value),
        ("state", describe.STATES[letter.state]),
        ("task", f"{letter.task} [{letter.task_id}]"),
        ("queue", letter.message.queue + lane),
        ("died", describe.died(letter, when)),
        ("counted", f"{letter.retries} retries, {letter.crashes} crashes, fence {letter.fence}"),
        ("worker", letter.worker or "unknown"),
        ("key", letter.key or "none"),
        ("record", describe.record_told(current_app, letter) if letter.key else "none"),
        ("raised in", letter.fault.place or "unknown"),
    ]  # fmt: skip


def _arguments(letter: Letter) -> str:
    shown = describe.arguments_shown(letter, letter_settings_of(current_app).arguments)
    if isinstance(shown, str):
        return shown
    return json.dumps(shown, indent=2, default=repr, ensure_ascii=False)


def _relatives(store: LetterStore, letter: Letter) -> list[dict[str, Any]]:
    """The chain around it, with a link where the other one is a letter, too."""
    found = describe.relatives(letter)
    dead = {it.id for it in store.page(Filter(ids=tuple(it.letter for it in found if it.letter)))}
    return [{"it": it, "letter": it.letter if it.letter in dead else ""} for it in found]


def _record_address(letter: Letter, site: str) -> str:
    """The page of its key's record, where that is in the database."""
    hashed = binding_of(current_app).settings.hash_keys
    pk = digest_of(digest_of(letter.key) if hashed else letter.key)
    if not letter.key or not KeyRecord.objects.filter(pk=pk).exists():
        return ""
    try:
        return reverse("admin:celery_idem_keyrecord_change", args=[pk], current_app=site)
    except NoReverseMatch:
        return ""  # a site that shows letters and no records


def _whole(given: Any, default: int, least: int) -> int:
    try:
        return max(least, int(given))
    except (TypeError, ValueError):
        return default
