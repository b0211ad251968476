"""A sorted set is used as a queue, and its score has no time in it: first in is not first out.

`ZPOPMIN` gives the member with the lowest score, and of several with the same score the one that
comes first *by alphabet*. With a priority alone as the score, jobs of one priority overtake each
other for ever (S-P4). And what was popped is gone when the worker dies.

Named is a `zadd` whose score is a plain name or number, where the project pops from a sorted set.

**Mend it:** put the time into the score (`priority * 10**10 + sent_at`), or let lanes do it: each
is first in, first out, and loses nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Place, Severity
from celery_idem.doctor.project import Project
from celery_idem.doctor.source.module import Module
from celery_idem.doctor.source.names import Names, calls_in

_POPS = {"zpopmin", "zpopmax", "bzpopmin", "bzpopmax", "zmpop", "bzmpop"}
_REDIS = ("redis", "valkey", "django_redis", "aioredis")


def look(project: Project) -> Iterator[Finding]:
    calls = [
        (module, call, method, names)
        for module in project.files
        for names, call in calls_in(project.reader, module)
        if (method := _redis_method(call, names))
    ]
    if not any(method in _POPS for _, _, method, _ in calls):
        return
    for module, call, method, names in calls:
        if method == "zadd" and _has_a_bare_score(call, names):
            yield _finding(module, call)


def _redis_method(call: ast.Call, names: Names) -> str:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in (*_POPS, "zadd"):
        return ""
    base = names.resolve(call.func.value)
    return call.func.attr if base.split(".")[0].rstrip("()[]") in _REDIS else ""


def _has_a_bare_score(call: ast.Call, names: Names) -> bool:
    given = [*call.args[1:2], *(it.value for it in call.keywords if it.arg == "mapping")]
    named = [value for it in given if isinstance(it, ast.Name) for value in names.assigned(it.id)]
    scores = [value for it in (*given, *named) if isinstance(it, ast.Dict) for value in it.values]
    words = {"time", "at", "now", "timestamp", "due", "when", "until", "seq", "sequence", "score"}
    return bool(scores) and all(
        isinstance(it, ast.Constant)
        or (isinstance(it, (ast.Name, ast.Attribute)) and not _words(it) & words)
        for it in scores
    )


def _words(node: ast.Name | ast.Attribute) -> set[str]:
    name = node.id if isinstance(node, ast.Name) else node.attr
    return set(name.lower().split("_"))


def _finding(module: Module, call: ast.Call) -> Finding:
    return Finding(
        "members of one score are popped by alphabet, not in order of arrival",
        remedy="zadd(queue, {job: priority * 10**10 + time.time()})  # or lanes",
        setting="zadd",
        place=Place(str(module.path), call.lineno, call.end_lineno or call.lineno),
    )


CHECK = Check(
    "IDEM056", "first in, first out expected within one score", Severity.WARNING, look,
    reads_source=True,
)  # fmt: skip
