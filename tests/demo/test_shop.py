"""``make shop`` as a visitor finds it."""

from __future__ import annotations

import http.cookiejar
import os
import re
import signal
import socket
import urllib.parse
import urllib.request

import pytest

from tests.demo.stage import DEADLINE_S, stage
from tests.support.servers import missing_redis
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing_redis()), reason=str(missing_redis())),
]


class Visitor:
    """A browser without pictures."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._jar = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._jar))

    def get(self, path: str) -> str:
        return str(self._opener.open(f"{self.base}{path}", timeout=60).read().decode())

    def post(self, path: str, **fields: str) -> str:
        token = next(c.value for c in self._jar if c.name == "csrftoken")
        form = urllib.parse.urlencode({**fields, "csrfmiddlewaretoken": token}).encode()
        return str(self._opener.open(f"{self.base}{path}", form, timeout=60).read().decode())


def test_a_visitor_buys_looks_at_the_admin_kills_the_worker_and_leaves_nothing(folder):
    with stage("serve", folder) as shop:
        shop.wait_text("Ctrl-C ends everything")
        base, password, pid = re.search(
            r"(http://\S+)/admin/ +visitor +(\S+)\n[^$]*?pid (\d+);", shop.text()
        ).groups()
        visitor = Visitor(base)

        # an impatient customer presses twice
        number = re.search(r'name="number" value="(\d+)"', visitor.get("/")).group(1)
        for _ in range(2):
            visitor.post("/buy/", number=number, product="Cup")
        wait_until(lambda: 'class="paid"' in visitor.get("/"), DEADLINE_S, what="a receipt")

        # whose job is in the admin, with its three steps
        visitor.get("/admin/login/")
        visitor.post("/admin/login/?next=/admin/", username="visitor", password=password)
        assert number in visitor.get("/admin/shop/order/")
        listed = visitor.get(f"/admin/celery_idem/keyrecord/?q=order:{number}")
        record = re.search(r"/admin/celery_idem/keyrecord/\w+/change/", listed).group(0)
        steps = [f"<td>{step}</td>" for step in ("order", "charge", "mail")]
        wait_until(
            lambda: all(step in visitor.get(record) for step in steps),
            DEADLINE_S,
            "its three steps: the receipt is shown before it is mailed",
        )
        done = f"/admin/celery_idem/keyrecord/?state=done&q=order:{number}"
        wait_until(lambda: record in visitor.get(done), DEADLINE_S, "a job that is done")

        # and another worker comes when this one is killed
        os.kill(int(pid), signal.SIGKILL)
        number = re.search(r'name="number" value="(\d+)"', visitor.get("/")).group(1)
        visitor.post("/buy/", number=number, product="Tray")
        wait_until(lambda: visitor.get("/").count('class="paid"') == 2, DEADLINE_S, what="the tray")

        shop.process.send_signal(signal.SIGINT)

        assert shop.process.wait(DEADLINE_S) == 0
        assert shop.left() == []
        assert [path.name for path in folder.iterdir()] == ["log"]


def test_a_port_that_is_taken_is_said_with_the_servers_own_words(folder, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with stage("serve", folder, "--port", str(other.getsockname()[1])) as shop:
            assert shop.process.wait(DEADLINE_S) == 1
            assert "already in use" in shop.text()
            assert "Traceback" not in shop.text()
            assert shop.left() == []
