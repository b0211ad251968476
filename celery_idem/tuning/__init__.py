"""``celery -A proj idem tune``: settings that fit the run times which workers have recorded (S-V7).

Pure but for :mod:`celery_idem.tuning.gather`, which reads the app and the store.
"""
