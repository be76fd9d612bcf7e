"""Erasing messages and inboxes: nothing of them is left in any file, and the rest is found as before."""

from collections.abc import Callable
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import apsw
import pytest

from gumshoe.mail.audit import MailAudit
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.canary_check import has_canaries
from gumshoe.mail.inbox_erasure import erase_inbox, erase_messages, find_message_ids, find_messages_of, has_inbox
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.schema import index_path, read_state, write_state
from tests.artifacts.files import find_bytes
from tests.errors import raises
from tests.mail.mailbox import make_index, record

ANN, BOB, CAROL = "ann@example.com", "bob@example.com", "carol@example.com"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return an index of mail from Ann to Bob, from Carol to Bob, and from Carol to Carol and Bob."""
    carol = {"from": CAROL, "sender": CAROL}
    records = [
        record(1, body="zircon for bob", to=[BOB]),
        record(2, **carol, body="quartz for bob", to=[BOB]),
        record(3, **carol, body="secret beryl", to=[CAROL]),
        record(4, **carol, body="opal, says ann@example.com", to=[BOB]),
    ]
    return make_index(tmp_path, records).directory


def test_a_message_is_erased_from_all_inboxes(directory: Path) -> None:
    assert find_message_ids(directory, "2@example.com") == ["<2@example.com>"]
    assert find_message_ids(directory, "9@example.com") == []
    assert find_bytes(directory, "quartz", "2@example.com") == {"quartz", "2@example.com"}
    erase_messages(directory, ["<2@example.com>"])
    assert find_bytes(directory, "quartz", "2@example.com") == set()
    assert MailAudit(directory).find("2@example.com") == []
    index = MailIndex(directory)
    for inbox in (BOB, CAROL):
        with pytest.raises(MessageNotFoundError):
            index.read(inbox, "<2@example.com>")
    assert [hit.message_id for hit in index.search(BOB, ["zircon"])] == ["<1@example.com>"]


def test_a_message_with_a_used_id_is_erased_alone(tmp_path: Path) -> None:
    directory = make_index(tmp_path, [record(1, body="zircon"), record(1, body="quartz")]).directory
    (hit,) = MailIndex(directory).search(BOB, ["quartz"])
    for name in (hit.message_id, hit.message_id.removeprefix("<")):
        assert find_message_ids(directory, name) == [hit.message_id]
    erase_messages(directory, [hit.message_id])
    assert find_message_ids(directory, hit.message_id) == []
    assert find_bytes(directory, "quartz", hit.message_id) == set()
    assert [each.message_id for each in MailIndex(directory).search(BOB, ["zircon"])] == ["<1@example.com>"]


def test_an_inbox_is_erased_with_what_only_it_may_see(directory: Path) -> None:
    before = MailIndex(directory).search(BOB, ["quartz"])
    assert has_inbox(directory, CAROL)
    erase_inbox(directory, CAROL)
    assert not has_inbox(directory, CAROL)
    assert find_bytes(directory, "beryl", "3@example.com") == set()
    index = MailIndex(directory)
    assert index.search(CAROL, ["quartz"]) == []
    assert index.search(BOB, ["quartz"]) == before
    assert index.read(BOB, "<2@example.com>").sender == CAROL
    assert index.stats()["messages"] == 3


def test_all_messages_of_a_person_are_erased(directory: Path) -> None:
    assert find_messages_of(directory, ANN) == ["<1@example.com>", "<4@example.com>"]
    erase_messages(directory, find_messages_of(directory, ANN))
    assert find_bytes(directory, ANN, "zircon", "opal") == set()
    assert not has_inbox(directory, ANN)
    assert [hit.message_id for hit in MailIndex(directory).search(BOB, ["quartz"])] == ["<2@example.com>"]


def test_messages_whose_attachments_mention_a_person_are_erased(tmp_path: Path) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Message-ID"] = CAROL, BOB, "<1@example.com>"
    message.set_content("See the file.")
    message.add_attachment(f"Ask {ANN}.", filename="contacts.txt")
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "1.eml").write_bytes(message.as_bytes())
    build_mail_index([f"eml:{tmp_path / 'mail'}"], tmp_path / "index")
    assert find_messages_of(tmp_path / "index", ANN) == ["<1@example.com>"]


def test_the_options_of_an_index_do_not_name_an_erased_inbox(tmp_path: Path) -> None:
    records = [record(1, to=[BOB]), record(2, to=[CAROL])]
    directory = make_index(tmp_path, records, MailBuildOptions(inboxes=(BOB, CAROL))).directory
    erase_inbox(directory, CAROL)
    assert MailIndex(directory).stats()["options"]["inboxes"] == [BOB]


def test_an_index_without_messages_is_deleted(directory: Path) -> None:
    for inbox in (ANN, BOB, CAROL):
        erase_inbox(directory, inbox)
    assert not index_path(directory).exists()
    assert find_bytes(directory, "zircon", "quartz", "beryl", "opal", "example.com") == set()


def test_an_index_whose_last_messages_are_erased_is_deleted(directory: Path) -> None:
    erase_messages(directory, [f"<{number}@example.com>" for number in (1, 2, 3, 4)])
    assert not index_path(directory).exists()
    assert find_bytes(directory, "zircon", "quartz", "beryl", "opal", "example.com") == set()


def test_removed_messages_are_erased_with_others(directory: Path) -> None:
    extend_mail_index([], directory, remove=["<3@example.com>"])
    assert find_message_ids(directory, "3@example.com") == ["<3@example.com>"]
    assert find_bytes(directory, "beryl") == {"beryl"}
    erase_messages(directory, ["<2@example.com>", "<3@example.com>"])
    assert find_bytes(directory, "quartz", "beryl", "2@example.com", "3@example.com") == set()
    assert find_message_ids(directory, "3@example.com") == []
    assert [hit.message_id for hit in MailIndex(directory).search(BOB, ["zircon"])] == ["<1@example.com>"]


def test_people_whose_addresses_contain_the_address_keep_their_mail(tmp_path: Path) -> None:
    joann = {"from": "joann@example.com", "sender": "joann@example.com"}
    others = [
        record(1, **joann, to=["mary.ann@example.com", "ann@example.com.au"]),
        record(2, **joann, body="ask x+ann@example.com", to=[BOB]),
        record(3, **joann, body="ask Ann@Example.com.", to=[BOB]),
        record(4, **joann, body="hi", to=[BOB, ANN]),
    ]
    assert find_messages_of(make_index(tmp_path, others).directory, ANN) == ["<3@example.com>", "<4@example.com>"]


def test_the_spellings_of_an_internationalized_domain_are_one_address(tmp_path: Path) -> None:
    records = [
        record(1, body="ask ann@bücher.example", to=[BOB]),
        record(2, body="ask ANN@BÜCHER.example", to=[BOB]),
        record(3, body="ask ann@xn--bcher-kva.example", to=[BOB]),
        record(4, body="ask ann@bucher.example or \u212aim@example.com", to=[BOB]),
    ]
    directory = make_index(tmp_path, records).directory
    found = find_messages_of(directory, "ann@xn--bcher-kva.example")
    assert found == [f"<{number}@example.com>" for number in (1, 2, 3)]
    assert find_messages_of(directory, "kim@example.com") == []


def test_only_sources_of_the_inbox_are_forgotten(tmp_path: Path) -> None:
    uris = []
    for number, name in enumerate((ANN, "joann@example.com"), 1):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "1.eml").write_text(f"From: x@example.com\nTo: {name}\nMessage-ID: <{number}@example.com>\n\nhello")
        uris.append(f"eml:{folder}")
    build_mail_index(uris, tmp_path / "index")
    state = read_state(tmp_path / "index")
    facts = {**state.facts, "revisions": dict.fromkeys(uris, "a commit")}
    write_state(tmp_path / "index", replace(state, facts=facts))
    erase_inbox(tmp_path / "index", ANN)
    facts = MailIndex(tmp_path / "index").stats()
    assert facts["sources"] == [*facts["source_messages"]] == [*facts["revisions"]] == uris[1:]


@pytest.mark.parametrize(
    ("options", "owner"), [(MailBuildOptions(inboxes=(ANN, BOB)), BOB), (None, ANN)], ids=["as option", "as source"]
)
def test_an_inbox_without_mail_is_found_by_its_name(
    tmp_path: Path, options: MailBuildOptions | None, owner: str
) -> None:
    directory = make_index(tmp_path, [record(1, sender=CAROL, to=[BOB])], options).directory
    (tmp_path / "empty.jsonl").write_text("")
    extend_mail_index([OwnedSource(f"jsonl:{tmp_path / 'empty.jsonl'}", owner)], directory)
    assert has_inbox(directory, ANN)
    erase_inbox(directory, ANN)
    assert not has_inbox(directory, ANN)
    assert find_bytes(directory, ANN) == set()
    assert [hit.message_id for hit in MailIndex(directory).search(BOB, ["body"])] == ["<1@example.com>"]


def test_damaged_values_give_an_error_that_names_the_index(tmp_path: Path) -> None:
    directory = make_index(tmp_path, [record(1, message_id="<canary.x@example.com>", to=[BOB])]).directory
    (segment,) = directory.glob("segment-*/*.sqlite")
    database = apsw.Connection(str(segment))
    database.execute("UPDATE copies SET recipients = 'x'")
    database.close()
    readers: list[Callable[[], object]] = [
        lambda: find_message_ids(directory, "canary.x@example.com"),
        lambda: find_messages_of(directory, ANN),
        lambda: erase_inbox(directory, ANN),
        lambda: has_canaries(directory),
    ]
    for read in readers:
        with raises("store.index-damaged", directory):
            read()
