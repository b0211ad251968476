"""A shop under load whose processes, servers and networks fail by a schedule: ``make chaos``.

A tool of this repository, not of the package: it uses the fixtures of ``tests/support``.
"""
