"""What a worker did, for Prometheus: ``pip install celery-idem[metrics]``, ``idem["metrics"]``.

Nothing here is loaded, and nothing is counted, by an app without that setting. The names, their
labels and the settings are in ``docs/metrics.md``.
"""
