"""The text of attachments, as agents, users and people who write questions read it below the body of a message."""

import json
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.data_marks import BEGIN, END
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.recorded import ENVIRONMENT, use_recorded
from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.environments.tools import Call
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.corpus import MailSearch
from gumshoe.mail.index import MailIndex
from gumshoe.mail.message import Attachment, join_texts
from tests.scenarios.questions import scenario

BOB = "bob@example.com"
TERMS = "valid until 30 June"
OFFER = "\n".join(f"Item {number} costs {number} euros." for number in range(2_000)) + "\nThese are all."
ASKED = scenario(1, inbox_address=BOB, query_date="2024-05-10", message_ids=["<2@example.com>"])


def write_message(directory: Path, number: int, subject: str, body: str, **attached: str) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "ann@example.com", BOB, subject
    message["Message-ID"], message["Date"] = f"<{number}@example.com>", f"Wed, {number} May 2024 12:00:00 +0000"
    if number == 2:
        message["In-Reply-To"] = "<1@example.com>"
    message.set_content(body)
    for name, text in attached.items():
        message.add_attachment(text, filename=f"{name}.txt")
    (directory / f"{number}.eml").write_bytes(message.as_bytes())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("attachments")
    (place / "mail").mkdir()
    write_message(place / "mail", 1, "Offer", "Could you send it?")
    write_message(place / "mail", 2, "Re: Offer", "Here it is.", offer=f"It is {TERMS}. {END}", terms="No returns.")
    write_message(place / "mail", 3, "Prices", "All of them.", prices=OFFER)
    build_mail_index([f"eml:{place / 'mail'}"], place / "index", MailBuildOptions())
    return place / "index"


@pytest.fixture(scope="module")
def index(directory: Path) -> MailIndex:
    return MailIndex(directory)


def read(index: MailIndex, number: int = 2, *, whole_thread: bool = False, page: int = 1, **settings: Any) -> str:
    place = EmailEnvironment(index, ASKED, 5, **{"marks": False, **settings})
    arguments = {"message_id": f"<{number}@example.com>", "whole_thread": whole_thread}
    return place.toolbox.run(Call("read_email", arguments | ({"page": page} if page > 1 else {})))


def test_what_a_search_finds_in_an_attachment_can_be_read(index: MailIndex) -> None:
    (hit,) = index.search(BOB, ["30 June"])
    assert TERMS in hit.snippet
    source = EmailEnvironment.read_source(index, ASKED, hit.message_id)
    assert source is not None
    shown = (read(index), read(index, whole_thread=True), source.text, MailSearch(index, BOB).read(hit.message_id).text)
    for text in shown:
        assert "\n\n[text of attachment offer.txt]\nIt is valid until 30 June." in text
        assert text.endswith("\n\n[text of attachment terms.txt]\nNo returns.")
        assert text.index("[attachment: terms.txt]") < text.index("[text of attachment offer.txt]")


@pytest.mark.parametrize("whole_thread", [False, True])
def test_policies_that_were_trained_without_attachments_see_the_body_alone(
    index: MailIndex, whole_thread: bool
) -> None:
    shown = read(index, whole_thread=whole_thread, attachments=False)
    assert shown.endswith("Here it is.\n\n[attachment: offer.txt]\n\n[attachment: terms.txt]")
    assert shown == read(index, whole_thread=whole_thread).partition("\n\n[text of attachment")[0]


def test_a_message_without_attachments_is_shown_alike_with_and_without_them(index: MailIndex) -> None:
    assert read(index, 1) == read(index, 1, attachments=False)


def test_marks_enclose_attachments(index: MailIndex) -> None:
    shown = read(index, marks=True)
    assert (shown.count(BEGIN), shown.count(END)) == (1, 1)
    assert shown.index(TERMS) < shown.index(END)
    assert shown.endswith(END)


def test_the_pages_of_a_message_have_all_of_its_attachments(index: MailIndex) -> None:
    pages = [read(index, 3, page=number, message_characters=4_000) for number in range(1, 15)]
    whole = "".join(shown.partition("\n\n")[2] for shown in pages)
    assert whole == f"All of them.\n\n[attachment: prices.txt]\n\n[text of attachment prices.txt]\n{OFFER}"
    assert all(len(shown) < 4_500 for shown in pages)


def test_without_pages_only_the_beginning_of_long_attachments_is_shown(index: MailIndex) -> None:
    alone, thread = read(index, 3), read(index, 3, whole_thread=True)
    assert alone == thread, "it is the only message of its thread"
    assert 12_000 < len(alone) < 12_500
    assert alone.endswith(f" […]\n\n[{len(OFFER) - 12_000:,} more characters of attachments are not shown]")


def test_in_a_thread_attachments_leave_room_for_other_messages(tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    write_message(tmp_path / "mail", 1, "Offer", "Could you send it?")
    write_message(tmp_path / "mail", 2, "Re: Offer", "Here it is.", offer=OFFER)
    build_mail_index([f"eml:{tmp_path / 'mail'}"], tmp_path / "index")
    shown = read(MailIndex(tmp_path / "index"), whole_thread=True)
    assert "Could you send it?" in shown
    assert "more characters: read this message alone to see them]" in shown
    assert 2_000 < len(shown) < 3_000


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, "Body\n\n[text of attachment a]\nfirst\n\n[text of attachment c]\nthird"),
        (10, "Body\n\n[text of attachment a]\nfirst\n\n[text of attachment c]\nthird"),
        (
            7,
            "Body\n\n[text of attachment a]\nfirst\n\n[text of attachment c]\nth […]"
            "\n\n[3 more characters of attachments are not shown]",
        ),
        (5, "Body\n\n[text of attachment a]\nfirst\n\n[5 more characters of attachments are not shown]"),
    ],
)
def test_attachments_are_shown_up_to_a_limit(limit: int | None, expected: str) -> None:
    attached = [Attachment("a", "first"), Attachment("b", problem="no text"), Attachment("c", "third\n")]
    assert join_texts("Body", attached, limit) == expected
    assert join_texts("", attached[:1]) == "[text of attachment a]\nfirst"
    assert join_texts("Body", attached[1:2]) == "Body"


@pytest.mark.parametrize(
    ("recorded", "expected"), [({"hits": 4}, False), ({"attachments": False}, False), ({"attachments": True}, True)]
)
def test_a_policy_sees_attachments_as_in_its_training(
    directory: Path, tmp_path: Path, recorded: dict[str, Any], expected: bool
) -> None:
    (tmp_path / ENVIRONMENT).write_text(json.dumps({"name": "email", "arguments": recorded}))

    def shows(found: EnvFactory) -> bool:
        return found.arguments["attachments"] is True

    found = use_recorded(open_env(directory), tmp_path)
    assert shows(found) is expected
    assert shows(found.for_calls())
    assert shows(open_env(directory))
    assert not shows(open_env(directory).for_tiny())
