"""The Redis store: one hash per key, one Lua script per operation, the server's clock."""

from celery_idem.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
