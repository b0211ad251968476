"""The thinking: pure code that knows neither Celery, Redis nor Django, tested without a server."""
