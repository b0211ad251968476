"""Where records live. One contract (:mod:`celery_idem.stores.base`), several stores."""
