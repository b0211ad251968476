"""What a task's body does to the world, along its longest path: read, never run.

Functions of the project that it calls are followed. What is given to ``self.step`` is not counted:
it has a record of its own. What stands behind a check of the state, or in ``idempotent``, is
*guarded*.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from celery_idem.doctor.source.clients import effect_of, grown_field, growth_of
from celery_idem.doctor.source.module import Function, Module
from celery_idem.doctor.source.names import Callee, Names, names_in
from celery_idem.doctor.source.state import decides_by_state
from celery_idem.doctor.source.success import branch_of_success

#: How deep calls are followed.
MOST_DEPTH = 5

_GUARDS = ("celery_idem.idempotent()", "celery_idem.guard.idempotent()")
_ON_COMMIT = ("django.db.transaction.on_commit",)
_NOT_RUN = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, eq=False)
class Effect:
    """One call. ``entry`` is the call in the task's own body that leads to it."""

    what: str
    grows: bool  #: it adds to something, instead of telling somebody
    module: Module
    node: ast.AST
    entry: ast.AST
    through: tuple[str, ...] = ()  #: functions of the project on the way
    guarded: bool = False
    in_loop: bool = False

    @property
    def line(self) -> int:
        return int(getattr(self.node, "lineno", 1))

    @property
    def end_line(self) -> int:
        return int(getattr(self.node, "end_lineno", None) or self.line)

    @property
    def shown(self) -> str:
        """``requests.post in tell_partner``."""
        return f"{self.what} in {self.through[-1]}" if self.through else self.what


@dataclass(frozen=True)
class Traced:
    """What some statements do."""

    every: tuple[Effect, ...] = ()
    longest: tuple[Effect, ...] = ()  #: along one path through branches
    ends: bool = False  #: nothing after them is reached
    guards: bool = False  #: what comes after them is reached only when the state allowed it

    def then(self, other: Traced) -> Traced:
        return Traced(
            self.every + other.every,
            self.longest + other.longest,
            self.ends or other.ends,
            self.guards or other.guards,
        )

    def entered_by(self, entry: ast.AST) -> Traced:
        """The same, led to by this call."""
        moved = {it: replace(it, entry=entry) for it in self.every if it.entry is not entry}
        return self._changed(moved) if moved else self

    def behind_a_look(self) -> Traced:
        """The same, guarded."""
        return self._changed({it: replace(it, guarded=True) for it in self.every})

    def _changed(self, to: dict[Effect, Effect]) -> Traced:
        every = tuple(to.get(it, it) for it in self.every)
        return replace(self, every=every, longest=tuple(to.get(it, it) for it in self.longest))

    def instead(self, other: Traced) -> Traced:
        """Either of them."""
        longest = max(self.longest, other.longest, key=len)
        return Traced(self.every + other.every, longest, self.ends and other.ends)


@dataclass(frozen=True)
class _Branched:
    """An ``if``, and what stands before it in its block, back to the ``if`` before."""

    before: Traced
    asked: Traced
    yes: Traced
    no: Traced

    def followed_by(self, tail: Traced) -> Traced:
        both = self._with(tail)
        return self.before.then(self.asked.then(both))

    def _with(self, tail: Traced) -> Traced:
        if self.yes.ends and not self.no.ends:
            return self.yes.instead(self.no.then(tail))
        if self.no.ends and not self.yes.ends:
            return self.no.instead(self.yes.then(tail))
        return self.yes.instead(self.no).then(tail)


def trace(names: Names, function: Function) -> Traced:
    """What the function's body does."""
    return _Walk(names, (), None, frozenset([function])).body(function.body)


@dataclass(frozen=True, eq=False)
class _Walk:
    names: Names
    through: tuple[str, ...]
    entry: ast.AST | None
    followed: frozenset[Function]
    guarded: bool = False
    in_loop: bool = False

    def body(self, statements: Sequence[ast.stmt]) -> Traced:
        done, walk = Traced(), self
        branched: list[_Branched] = []
        block = statements
        for place, statement in enumerate(statements):
            if isinstance(statement, ast.If):
                # a loop, not a recursion: a body may have a thousand of them
                branched.append(walk._if(statement, done))
                done, block = Traced(), statements[place + 1 :]
                walk = replace(walk, guarded=walk.guarded or branched[-1].asked.guards)
                continue
            done = done.then(walk._statement(statement, block))
            if done.ends:
                break
            walk = replace(walk, guarded=walk.guarded or done.guards)
        for it in reversed(branched):
            done = it.followed_by(done)
        return done

    def _if(self, statement: ast.If, before: Traced) -> _Branched:
        asked = self._expression(statement.test)
        decides = decides_by_state(statement.test, self.names)
        inside = replace(self, guarded=self.guarded or decides)
        yes, no = inside.body(statement.body), inside.body(statement.orelse)
        guards = decides and (yes.ends or no.ends)
        if not guards:
            success = branch_of_success(statement.test, self.names)
            if success is not None and (yes if success else no).ends:
                # it is there already, and no more is done
                guards, yes, no = True, yes.behind_a_look(), no.behind_a_look()
        return _Branched(before, replace(asked, guards=guards), yes, no)

    def _statement(self, statement: ast.stmt, block: Sequence[ast.stmt]) -> Traced:
        if isinstance(statement, _NOT_RUN):
            return Traced()
        if isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            return replace(self._parts(statement), ends=True)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            return self._expression(statement.iter).then(self._loop(statement.body))
        if isinstance(statement, ast.While):
            return self._expression(statement.test).then(self._loop(statement.body))
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            return self._with(statement)
        if isinstance(statement, ast.Try):
            return self._try(statement)
        if isinstance(statement, ast.Match):
            return self._match(statement)
        grown = grown_field(statement, self.names)
        if grown and _is_saved(grown, block):
            return self._parts(statement).then(self._one(grown, statement, grows=True))
        return self._parts(statement)

    def _loop(self, body: Sequence[ast.stmt]) -> Traced:
        return replace(replace(self, in_loop=True).body(body), ends=False, guards=False)

    def _with(self, statement: ast.With | ast.AsyncWith) -> Traced:
        opened = Traced()
        guards = False
        for item in statement.items:
            opened = opened.then(self._expression(item.context_expr))
            guards = guards or self.names.resolve(item.context_expr) in _GUARDS
        return opened.then(replace(self, guarded=self.guarded or guards).body(statement.body))

    def _try(self, statement: ast.Try) -> Traced:
        whole = tried = self.body([*statement.body, *statement.orelse])
        for handler in statement.handlers:
            tried = tried.instead(self.body(handler.body))
        return replace(tried, guards=whole.guards).then(self.body(statement.finalbody))

    def _match(self, statement: ast.Match) -> Traced:
        decides = decides_by_state(statement.subject, self.names)
        inside = replace(self, guarded=self.guarded or decides)
        found = Traced()
        for case in statement.cases:
            found = found.instead(inside.body(case.body))
        return self._expression(statement.subject).then(replace(found, ends=False))

    # -- expressions

    def _parts(self, statement: ast.stmt) -> Traced:
        found = Traced()
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.expr):
                found = found.then(self._expression(node))
        return found

    def _expression(self, node: ast.AST) -> Traced:
        if isinstance(node, _NOT_RUN):
            return Traced()
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.IfExp):
            asked = self._expression(node.test)
            return asked.then(self._expression(node.body).instead(self._expression(node.orelse)))
        walk = replace(self, in_loop=True) if isinstance(node, _LOOPS) else self
        return _all(walk._expression(it) for it in ast.iter_child_nodes(node))

    def _call(self, call: ast.Call) -> Traced:
        inner = _all(self._expression(it) for it in ast.iter_child_nodes(call))
        if self.names.resolve(call.func) in _ON_COMMIT:
            later = [it for it in call.args if isinstance(it, ast.Lambda)]
            inner = inner.then(_all(self._expression(it.body) for it in later))
        for tell, grows in ((effect_of, False), (growth_of, True)):
            what = tell(call, self.names)
            if what:
                return inner.then(self._one(what, call, grows=grows))
        return inner.then(self._follow(call))

    def _follow(self, call: ast.Call) -> Traced:
        callee = self.names.callee(call)
        if callee is None or callee.function in self.followed or len(self.through) >= MOST_DEPTH:
            return Traced()
        key = (self.through, self.followed, self.guarded, self.in_loop)
        # the same wherever in a body it is called, but for the entry
        done = self.names.of(callee).once(("traced", key), lambda: self._trace_callee(callee, call))
        return done.entered_by(self.entry or call)

    def _trace_callee(self, callee: Callee, call: ast.Call) -> Traced:
        names = self.names.of(callee)
        outside = names_in(self.names.reader, callee.module)
        guards = any(outside.resolve(it) in _GUARDS for it in callee.function.decorator_list)
        walk = _Walk(
            names,
            (*self.through, callee.function.name),
            self.entry or call,
            self.followed | {callee.function},
            self.guarded or guards,
            self.in_loop,
        )
        return replace(walk.body(callee.function.body), ends=False, guards=False)

    def _one(self, what: str, node: ast.AST, *, grows: bool) -> Traced:
        effect = Effect(
            what, grows, self.names.module, node, self.entry or node, self.through, self.guarded,
            self.in_loop,
        )  # fmt: skip
        return Traced((effect,), (effect,))


def _is_saved(field: str, block: Iterable[ast.stmt]) -> bool:
    name = field.partition(".")[0]
    for statement in block:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if node.func.attr in ("save", "asave") and isinstance(owner, ast.Name):
                    if owner.id == name:
                        return True
    return False


def _all(traced: Iterable[Traced]) -> Traced:
    found = Traced()
    for it in traced:
        found = found.then(it)
    return found
