"""The doctor: what is wrong with a project's configuration, before it hurts.

One small file per check in :mod:`celery_idem.doctor.checks`. ``celery -A proj idem check`` and
Django's system checks show what they find.
"""
