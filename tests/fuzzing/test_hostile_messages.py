"""Hostile messages are read with bounded work and memory, nothing is lost silently, and the index stays usable."""

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gumshoe.mail.index import MailIndex
from gumshoe.mail.search_results import Message
from tests.fuzzing import hostile_messages
from tests.fuzzing.hostile_messages import WITHOUT_TEXT, names
from tests.fuzzing.hostile_registry import TOKEN, message_id

pytestmark = pytest.mark.ci
BOB = "bob@example.com"
TOO_LARGE = {"10000 recipients"}
"""Messages above a limit of the build. They are counted."""
READ = [each for each in names() if each not in WITHOUT_TEXT | TOO_LARGE]
BY_NAME = pytest.mark.parametrize("name", READ)


@dataclass(frozen=True)
class HostileIndex:
    """An index of all hostile messages, and the report of its build."""

    index: MailIndex
    report: dict[str, Any]

    def read(self, name: str) -> Message:
        return self.index.read(BOB, message_id(name))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> HostileIndex:
    """Build the index in a process with limits. It ends with an error if a message needs more."""
    place = tmp_path_factory.mktemp("hostile")
    hostile_messages.main(str(place / "mail"))
    words = [sys.executable, "-m", "tests.fuzzing.hostile_build", str(place / "mail"), str(place / "index")]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr[-3000:]
    return HostileIndex(MailIndex(place / "index"), json.loads(ran.stdout.splitlines()[-1]))


def test_messages_are_always_the_same() -> None:
    assert len(names()) >= 29
    for name in names():
        if "200 MB" not in name:  # takes seconds to make
            first, second = hostile_messages.make(name), hostile_messages.make(name)
            assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()


def test_every_message_is_indexed_or_counted(hostile: HostileIndex) -> None:
    assert hostile.report["read"] == len(names()) - len(WITHOUT_TEXT)
    places = {Path(place).stem for place, *_ in hostile.index.list_unreadable()}
    assert places == {name.replace(" ", "-") for name in WITHOUT_TEXT}
    assert sum(hostile.report["unreadable"].values()) == len(WITHOUT_TEXT)
    assert hostile.report["without_inbox"] == 0
    assert hostile.report["kept_out"] == {"many recipients": len(TOO_LARGE)}


@BY_NAME
def test_the_text_of_a_hostile_message_is_read(name: str, hostile: HostileIndex) -> None:
    message = hostile.read(name)
    shown = [message.subject, message.body, *(each.text for each in message.attachments)]
    assert any(TOKEN in text for text in shown)
    for text in [*shown, message.sender, message.sender_name, *(each.address for each in message.recipients)]:
        assert "\0" not in text
        text.encode()
    assert hostile.index.read_thread(BOB, message.message_id)
    for each in message.attachments:
        assert bool(each.text) != bool(each.problem), each.name


def test_all_hostile_messages_are_listed_and_found(hostile: HostileIndex) -> None:
    assert {each for each, _ in hostile.index.list_messages(BOB)} == set(map(message_id, READ))
    assert hostile.index.search_partially(BOB, [TOKEN, "nothing"]).counts == {
        TOKEN: len(READ),
        "nothing": 0,
    }


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("zip bomb", "unknown type"),
        ("document bomb", "cannot be read"),
        ("300 attachments", "too many"),
        ("a PDF of loops", "cannot be read"),
    ],
)
def test_an_attachment_that_is_not_read_has_a_reason(name: str, problem: str, hostile: HostileIndex) -> None:
    assert problem in [each.problem for each in hostile.read(name).attachments]


def test_nobody_else_gets_a_hostile_message(hostile: HostileIndex) -> None:
    """Recipients in encoded words, comments and quotes are names, not addresses."""
    assert hostile.index.list_messages("eve@example.com") == []
    assert hostile.index.list_messages("p9999@example.com") == []
