"""The Django side: ``INSTALLED_APPS += ["celery_idem.django"]``, then ``manage.py migrate``."""
