"""Sixty tasks as other people write them, for false alarms: three styles of twenty.

Written before the checks that read source were, and not changed to suit them. Every task is right
as it stands, unless a comment ``expect: ID`` on its decorator or class says what is wrong.
"""
