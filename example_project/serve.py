"""The shop to walk about in: web site, admin, worker, gateway, a private server; Ctrl-C ends all.

Everything runs on free loopback ports and in a temporary folder, and nothing is left of it. Records
of jobs are kept in Redis before the database, so that they can be looked at in the admin.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NoReturn

from example_project.embedded import LOOPBACK, free_port
from example_project.family import Family, Process
from example_project.figures import Reader
from example_project.gateway import LIMIT_CENTS
from example_project.premises import READY_DEADLINE_S, Premises
from example_project.stockroom import PRODUCTS

#: Orders that are there when the visitor comes; each is sent twice.
ORDERS = 12
VISITOR = "visitor"
LOOK_EVERY_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C; returns the exit status."""
    options = read_options(argv)
    signal.signal(signal.SIGTERM, _leave)
    folder = Path(tempfile.mkdtemp(prefix="shop-"))
    try:
        with Family() as family:
            # a visitor may kill the worker at any instant: this broker loses nothing then
            settings = {"SHOP_STORE": "tiered"}
            shop = Premises(folder, family, scheme="redis-streams://", settings=settings)
            print("starting a server, a gateway, a database and a worker ...", flush=True)
            shop.open(workers=1, database=options.database, fresh=False)
            site, address = start_site(shop, options.port)
            shop.wait_ready(Reader(shop.books, shop.gateway))
            wait_for_site(site, address, folder / "site.log")
            fill()
            welcome(shop, address, make_visitor())
            serve(shop, site, folder / "site.log")
    except KeyboardInterrupt:
        print("\nclosed; everything that was started is ended")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m example_project.serve", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="of the web site; default: a free one")
    parser.add_argument(
        "--database", default="", help="a URL, postgresql://... or mysql://...; default: SQLite"
    )
    options = parser.parse_args(argv)
    if not 0 <= options.port < 65536:
        parser.error(f"--port must be between 1 and 65535, not {options.port}")
    return options


def start_site(shop: Premises, port: int) -> tuple[Process, str]:
    """Django's own server; returns it and its address."""
    address = f"{LOOPBACK}:{port or free_port()}"
    site = shop.family.start(
        [sys.executable, "-m", "example_project.manage", "runserver", address, "--noreload"],
        shop.folder / "site.log",
        env=shop.env,
    )
    return site, address


def wait_for_site(site: Process, address: str, log: Path) -> None:
    """Raises ``RuntimeError`` with its log when it does not answer."""
    gives_up = time.monotonic() + READY_DEADLINE_S
    while not _answers(address):
        if site.poll() is not None or time.monotonic() > gives_up:
            raise RuntimeError(f"the web site did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


def _answers(address: str) -> bool:
    link = HTTPConnection(address, timeout=5)
    try:
        link.request("GET", "/")
        return link.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        link.close()


def fill() -> None:
    """A few orders, each sent twice, one of which the bank declines; and one login code, asked for
    three times."""
    from example_project.shop.tasks import complete_order, send_login_code

    products = list(PRODUCTS.items())
    for number in range(1, ORDERS + 1):
        product, cents = products[number % len(products)]
        for _ in range(2):
            complete_order.delay(number, product, cents)
    complete_order.delay(ORDERS + 1, "Lamp", LIMIT_CENTS + 1)
    for _ in range(3):
        send_login_code.delay("ann@mail.example", f"{secrets.randbelow(10**6):06}")


def make_visitor() -> str:
    """A superuser; returns the password."""
    from django.contrib.auth import get_user_model

    password = secrets.token_urlsafe(9)
    users: Any = get_user_model()
    users.objects.filter(username=VISITOR).delete()
    users.objects.create_superuser(VISITOR, password=password)
    return password


def welcome(shop: Premises, address: str, password: str) -> None:
    """What there is to see. The environment is kept in a file, for commands beside it."""
    env = shop.folder / "env"
    env.write_text("".join(f"export {k}={shlex.quote(v)}\n" for k, v in shop.env.items()))
    (pid,) = shop.pids().values()
    print(
        f"""
the shop     http://{address}/
its admin    http://{address}/admin/      {VISITOR}  {password}
logs         {shop.folder}
the worker   pid {pid}; kill -9 it, another comes

in another terminal:
  . {env}
  {sys.executable} example_project/manage.py idem list
  {sys.executable} example_project/manage.py dlq list

Ctrl-C ends everything""",
        flush=True,
    )


def serve(shop: Premises, site: Process, log: Path) -> NoReturn:
    """Until Ctrl-C. Raises ``RuntimeError`` when the web site ends by itself."""
    while site.poll() is None:
        shop.replace_the_dead()
        time.sleep(LOOK_EVERY_S)
    raise RuntimeError(f"the web site has ended:\n{log.read_text()[-3000:]}")


def _leave(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
