"""A morning with the DLQ, typed: three faults are told apart, mended, sent again, and counted.

docs/a-morning-with-the-dlq.md shows these commands, in this order. ``IDEM_PICTURES`` names a folder
for what the terminal showed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from example_project.night import AGAIN, CLOSED, FIRST, MISSPELT, TOO_MUCH
from tests.demo.stage import ROOT
from tests.morning.conftest import Shop
from tests.morning.terminal import TMUX, Terminal

PAGE = ROOT / "docs/a-morning-with-the-dlq.md"
DLQ = "celery -A example_project.shop dlq"
#: ``make shop`` itself leaves one card declined
DECLINED = TOO_MUCH + 1
ALL = CLOSED + MISSPELT + DECLINED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TMUX is None, reason="no tmux"),
]


class Morning:
    """What is typed, and what the terminal said."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._told: list[str] = []

    def dlq(self, words: str, *answers: tuple[str, str], code: int = 0) -> str:
        return self.type(f"{DLQ} {words}", *answers, code=code)

    def type(self, command: str, *answers: tuple[str, str], code: int = 0) -> str:
        printed = self._terminal.run(command, *answers, code=code)
        self._told.append(f"$ {command}\n{printed}\n")
        return printed

    def commands(self) -> list[str]:
        """What was typed, with ids and paths taken out."""
        return [plain(it.partition("\n")[0]) for it in self._told]

    def keep(self, folder: Path) -> None:
        (folder / "morning.txt").write_text("\n".join(self._told))


def plain(command: str) -> str:
    """A command of whatever night."""
    command = re.sub(r"\b[0-9a-f]{20}\b", "ID", command)
    command = re.sub(r"--group [0-9a-f]{12}\b", "--group GROUP", command)
    return re.sub(r"--to \S+", "--to FILE", command)


def test_a_morning_in_the_terminal(shop: Shop, tmp_path: Path) -> None:
    with Terminal(tmp_path, shop.env, ROOT) as terminal:
        morning = Morning(terminal)

        # how bad is it?
        assert re.search(rf"letters +{ALL}\b", morning.dlq("stats"))
        seen = morning.dlq("groups")
        assert f"{ALL} letters, 3 faults" in seen
        assert re.search(rf"\b{CLOSED} .*Unreachable +shop.payments:post", seen)
        assert re.search(rf"\b{MISSPELT} .*Product.DoesNotExist +shop.tasks:enter", seen)
        assert re.search(rf"\b{DECLINED} .*CardDeclined +shop.payments:charge", seen)
        group = shop.groups()
        gateway, product, card = group["Unreachable"], group["DoesNotExist"], group["CardDeclined"]

        _the_gateway_was_closed(shop, morning, gateway)
        _a_product_was_misspelt(shop, morning, product)
        _cards_were_declined(morning, card, tmp_path)

        # and nothing is left
        assert re.search(r"letters +0\b", morning.dlq("stats --fail-if-any"))
        _each_order_once(shop)
        typed_in_the_page = re.findall(r"^\$ celery .*$", PAGE.read_text(), re.MULTILINE)
        assert [plain(it) for it in typed_in_the_page] == morning.commands()
        morning.keep(Path(os.environ.get("IDEM_PICTURES", tmp_path)))


def _the_gateway_was_closed(shop: Shop, morning: Morning, group: str) -> None:
    """It is open again; twelve customers have already ordered again by themselves."""
    letter = shop.letters(group)[0]
    shown = morning.dlq(f"show {letter} | head -n 12")
    assert "answered 503" in shown
    assert "done steps: order" in shown
    assert re.search(r"arguments  \(70\d+, ", shown)

    shop.end_of_the_night()
    foretold = morning.dlq(f"replay --group {group} --dry-run")
    assert re.search(rf"{CLOSED - AGAIN}  would be sent$", foretold, re.MULTILINE)
    assert re.search(rf"{AGAIN}  would be sent; done meanwhile, nothing runs", foretold)

    sent = morning.dlq(f"replay --group {group} --canary 5 --rate 50", ("again? [y/N]", "y"))
    assert re.search(rf"{CLOSED - AGAIN}  sent$", sent, re.MULTILINE)
    assert re.search(rf"{AGAIN}  sent; done meanwhile, nothing runs", sent)
    shop.wait_paid(CLOSED)

    trail = morning.dlq(f"show {letter}")
    assert "was sent again, and has not come back" in trail


def _a_product_was_misspelt(shop: Shop, morning: Morning, group: str) -> None:
    """By an old catalogue: one argument is mended, in all of them."""
    letter = shop.letters(group)[0]
    shown = morning.dlq(f"show {letter} | head -n 12")
    assert "'Kettel', 2490)" in shown

    asked = morning.dlq(
        f"edit --group {group} --set product=Kettle", (f"Save {MISSPELT}? [y/N]", "y")
    )
    assert re.search(r'^-.*"Kettel"', asked, re.MULTILINE)
    assert re.search(r'^\+.*"Kettle"', asked, re.MULTILINE)
    assert f"{MISSPELT} saved" in asked

    sent = morning.dlq(f"replay --group {group} --canary 1 --yes")
    assert re.search(rf"{MISSPELT}  sent$", sent, re.MULTILINE)
    shop.wait_paid(CLOSED + MISSPELT)


def _cards_were_declined(morning: Morning, group: str, folder: Path) -> None:
    """The bank will not change its mind: keep them in a file, and delete them."""
    kept = folder / "declined.jsonl"
    assert f"{DECLINED} exported" in morning.dlq(f"export --group {group} --to {kept}")
    assert len(kept.read_text().splitlines()) == DECLINED
    gone = morning.dlq(f"purge --group {group}", ("for good? [y/N]", "y"))
    assert f"{DECLINED} deleted" in gone


def _each_order_once(shop: Shop) -> None:
    paid = shop.paid()
    numbers = list(range(FIRST, FIRST + CLOSED + MISSPELT))
    assert sorted(it for it, (_, status) in paid.items() if status == "paid") == numbers
    assert {product for product, _ in paid.values()} == {"Kettle", "Lamp", "Teapot"}
    assert shop.charges() == numbers
    assert shop.mails() == numbers
