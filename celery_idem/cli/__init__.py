"""``celery -A proj idem …`` and ``celery -A proj dlq …``."""
