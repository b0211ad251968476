"""A store behind TLS, configured as Celery's users configure their broker and backend."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_idem import ConfigError
from celery_idem.binding import binding_of
from celery_idem.deadletters.choose import letters_of
from celery_idem.stores.choose import Surroundings
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="no openssl to make a certificate with")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 by its own authority, and its key beside it."""
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    subprocess.run(
        [
            *(str(OPENSSL), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *(
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=test",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ),
            *("-keyout", str(path.with_suffix(".key")), "-out", str(path)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return path


@pytest.fixture
def line(certificate: Path, redis_session_server: RedisServer, redis_url: str) -> Iterator[str]:
    """``127.0.0.1:port`` of a Redis that is reached by TLS only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with FaultProxy(redis_session_server.address, tls=context) as proxy:
        yield f"127.0.0.1:{proxy.port}"


def app_of(**conf: Any) -> Celery:
    app = Celery("tls", set_as_current=False)
    app.conf.update({"idem": {"store_patience_s": 0}, **conf})
    return app


def reaches(app: Celery) -> None:
    """Both stores answer over the line."""
    assert binding_of(app).store.get("a key") is None
    assert letters_of(app).get("0" * 20) is None


@pytest.mark.parametrize("value", ["CERT_NONE", "none"])
def test_the_url_says_it_by_celerys_names_or_redis_pys(line: str, value: str) -> None:
    reaches(app_of(broker_url=f"rediss://{line}/0?ssl_cert_reqs={value}"))


@pytest.mark.parametrize("value", [ssl.CERT_REQUIRED, "required", "CERT_REQUIRED"])
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_broker_use_ssl_counts_for_the_stores_too(
    line: str, certificate: Path, scheme: str, value: Any
) -> None:
    use_ssl = {"ssl_cert_reqs": value, "ssl_ca_certs": str(certificate)}

    reaches(app_of(broker_url=f"{scheme}://{line}/0", broker_use_ssl=use_ssl))


def test_the_backends_tls_counts_where_the_store_is_the_backends(
    line: str, certificate: Path
) -> None:
    use_ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": str(certificate)}
    app = app_of(
        broker_url="amqp://", result_backend=f"rediss://{line}/0", redis_backend_use_ssl=use_ssl
    )

    reaches(app)


def test_a_certificate_that_is_not_trusted_is_refused(line: str) -> None:
    """So the others did not pass because nothing was looked at."""
    with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
        reaches(app_of(broker_url=f"rediss://{line}/0"))


def test_an_unknown_word_is_an_error_that_names_the_known_ones(line: str) -> None:
    with pytest.raises(ConfigError, match="ssl_cert_reqs 'NONE' is unknown; allowed are CERT_NONE"):
        reaches(app_of(broker_url=f"rediss://{line}/0?ssl_cert_reqs=NONE"))


def test_another_server_does_not_get_the_brokers_certificates() -> None:
    around = Surroundings(
        settings=None,  # type: ignore[arg-type]
        broker_url="rediss://broker:6379/0",
        broker_ssl={"ssl_ca_certs": "/broker.pem"},
    )

    assert around.redis_options("rediss://broker:6379/5")["ssl_ca_certs"] == "/broker.pem"
    assert around.redis_options("rediss://elsewhere:6379/0") == {}
