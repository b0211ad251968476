"""Mutants of the Lua scripts: one change to one line each, and whether a test notices.

``python -m mutation`` runs the tests of a room's scripts over each, on a server of its own, and
prints those that no test noticed. The Python rules are mutated by mutmut (``make mutate``); what
was run, and why each survivor changes nothing, is in ``docs/mutation.md``.
"""
