"""Extract inboxes: the result equals an index that was built with them, and no byte tells of other inboxes."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.mail import segment_rewriter, segment_writer
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.inbox_extraction import extract_inboxes
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.index import MailIndex
from gumshoe.mail.schema import read_state
from tests.conftest import CommandResult
from tests.errors import raises
from tests.mail.mailbox import make_index, record, write_jsonl
from tests.mail.small_mailboxes import BOB, PEOPLE, mailboxes, observe

ANN, CAROL = PEOPLE[0], PEOPLE[2]


def read_bytes(directory: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


@pytest.mark.ci
@settings(max_examples=25)
@given(
    records=mailboxes,
    cut=st.integers(1, 8),
    chosen=st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=2, unique=True),
    drop_duplicates=st.booleans(),
)
def test_an_extracted_index_equals_one_that_was_built_with_its_inboxes(
    records: list[dict[str, Any]], cut: int, chosen: list[str], drop_duplicates: bool
) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        index = make_index(directory / "all", records[:cut], MailBuildOptions(drop_duplicates=drop_duplicates))
        if records[cut:]:
            extend_mail_index([write_jsonl(directory / "more.jsonl", records[cut:])], index.directory)
        options = MailBuildOptions(drop_duplicates=drop_duplicates, inboxes=tuple(sorted(chosen)))
        built = make_index(directory / "built", records, options)
        if any(not built.list_messages(inbox) for inbox in chosen):
            return
        report = extract_inboxes(index.directory, chosen, directory / "extracted")
        extracted = MailIndex(directory / "extracted")
        assert observe(extracted) == observe(built)
        assert report.content == built.stats()["content"]
        names = ("messages", "copies", "inboxes", "without_inbox", "options", "attachments")
        assert [extracted.stats()[name] for name in names] == [built.stats()[name] for name in names]
        more = write_jsonl(directory / "more.jsonl", [record(90, to=[chosen[0]], body="gas")])
        extend_mail_index([more], directory / "extracted")
        extend_mail_index([more], built.directory)
        assert observe(MailIndex(directory / "extracted")) == observe(MailIndex(built.directory))


def test_no_byte_of_an_extracted_index_tells_of_other_inboxes(tmp_path: Path) -> None:
    shared = {"subject": "shared subject", "body": "shared text"}
    records = [
        record(1, **shared, bcc=["Dora Blindcopy <dora@example.com>", CAROL]),
        record(2, **shared, to=["Zoe Other <zoe@example.com>"], x_from="Alias Ann", references=["<secretref@x>"]),
        record(3, subject="secretsubject", body="secretbody", to=[CAROL], message_id="<secretid@example.com>"),
        record(4, sender="eve@example.com", to=[BOB, CAROL], body="visible text"),
        record(5, subject="late", body="erasedbody"),
    ]
    source = write_jsonl(tmp_path / "m.jsonl", records)
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write("secretline no json\n")
    build_mail_index(
        [source, OwnedSource(write_jsonl(tmp_path / "secretsource.jsonl", [record(6)]), ANN)], tmp_path / "all"
    )
    extend_mail_index([], tmp_path / "all", remove=["<5@example.com>"])
    extract_inboxes(tmp_path / "all", [BOB], tmp_path / "bob")
    content = read_bytes(tmp_path / "bob")
    for shown in ("shared text", "visible text", "ann@example.com", "eve@example.com", "carol@example.com"):
        assert shown.encode() in content
    secrets = ("secret", "dora", "Dora", "Blindcopy", "zoe", "Zoe", "Alias", "erased", "6@example.com", "2@example.com")
    everything = read_bytes(tmp_path / "all")
    for secret in secrets:
        assert secret.encode() in everything
        assert secret.encode() not in content
    bob = MailIndex(tmp_path / "bob")
    assert [each.address for each in bob.read(BOB, "<1@example.com>").recipients] == [BOB]
    assert bob.list_unreadable() == []
    assert (bob.stats()["sources"], bob.stats()["messages"], bob.stats()["inboxes"]) == ([], 2, 1)


def test_a_blind_copy_is_kept_for_those_who_see_it(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, bcc=[CAROL, "dora@example.com"])])
    for inbox, people in ((CAROL, [BOB, CAROL]), (ANN, [BOB, CAROL, "dora@example.com"])):
        extract_inboxes(index.directory, [inbox], tmp_path / inbox)
        found = MailIndex(tmp_path / inbox).read(inbox, "<1@example.com>").recipients
        assert [each.address for each in found] == people
        assert (b"dora" in read_bytes(tmp_path / inbox)) == (inbox == ANN)


def test_an_owner_keeps_the_sources_that_are_hers(tmp_path: Path) -> None:
    sources = [
        OwnedSource(write_jsonl(tmp_path / f"{name}.jsonl", [record(number)]), name)
        for number, name in enumerate((ANN, BOB))
    ]
    build_mail_index(sources, tmp_path / "all")
    extract_inboxes(tmp_path / "all", [ANN], tmp_path / "ann")
    facts = MailIndex(tmp_path / "ann").stats()
    assert facts["sources"] == [sources[0].to_fact()]
    assert facts["content"] == build_mail_index(sources, tmp_path / "built", MailBuildOptions(inboxes=(ANN,))).content
    extend_mail_index(sources[:1], tmp_path / "ann", sync=True)
    assert MailIndex(tmp_path / "ann").stats()["content"] == facts["content"]


def test_segments_are_written_together_or_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(number, body=f"gas {number % 9}", to=[PEOPLE[number % 3]]) for number in range(60)]
    monkeypatch.setattr(segment_writer, "_FULL_MESSAGES", 10)
    monkeypatch.setattr("gumshoe.mail.source_batches._BATCH", 10)
    monkeypatch.setattr("gumshoe.mail.posting_texts._BLOCK", 7)
    index = make_index(tmp_path / "all", records)
    built = observe(make_index(tmp_path / "built", records, MailBuildOptions(inboxes=(BOB,))), [BOB])
    segments = []
    for number, limits in enumerate([(100, 1_000), (1_000_000, 5), (1_000_000, 1_000)]):
        for name, limit in zip(("MAX_SIZE", "_MAX_PAIRS"), limits, strict=True):
            monkeypatch.setattr(segment_rewriter, name, limit)
        extract_inboxes(index.directory, [BOB], tmp_path / str(number))
        assert observe(MailIndex(tmp_path / str(number)), [BOB]) == built
        segments.append(len(read_state(tmp_path / str(number)).segments))
    assert segments[2] == 1 < min(segments[:2])


def test_what_cannot_be_extracted_is_an_error(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1)])
    with raises("mail.inbox-not-indexed", "dave@example.com"):
        extract_inboxes(index.directory, [BOB, "dave@example.com"], tmp_path / "new")
    with raises("mail.invalid-address", "bob"):
        extract_inboxes(index.directory, ["bob"], tmp_path / "new")
    with raises("mail.index-exists", index.directory):
        extract_inboxes(index.directory, [BOB], index.directory)
    with raises("mail.no-index", tmp_path / "new"):
        extract_inboxes(tmp_path / "new", [BOB], tmp_path / "newer")
    assert not list((tmp_path / "new").glob("*"))


def test_an_inbox_whose_messages_were_all_removed_counts_no_more(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1), record(2, to=[CAROL]), record(3)])
    extend_mail_index([], index.directory, remove=["<1@example.com>", "<2@example.com>"])
    assert MailIndex(index.directory).stats()["inboxes"] == 2
    with raises("mail.inbox-not-indexed", CAROL):
        extract_inboxes(index.directory, [CAROL], tmp_path / "new")
    assert extract_inboxes(index.directory, [BOB], tmp_path / "new").messages == 1


def test_the_command_extracts_inboxes(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1), record(2, to=[CAROL])])
    ran = run("mail", "extract", "--index", index.directory, "--inbox", BOB, "--out", tmp_path / "bob")
    assert "1 messages" in ran.out
    assert [message_id for message_id, _ in MailIndex(tmp_path / "bob").list_messages(BOB)] == ["<1@example.com>"]


def test_an_interrupted_extraction_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make_index(tmp_path, [record(1)])
    complete = segment_writer.complete_segment

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(segment_rewriter, "complete_segment", stop)
    with pytest.raises(KeyboardInterrupt):
        extract_inboxes(index.directory, [BOB], tmp_path / "bob")
    with pytest.raises(KeyboardInterrupt):
        extend_mail_index([], index.directory, compact=True)
    assert list((tmp_path / "bob").iterdir()) == []
    assert not (index.directory / ".partial").exists()
    monkeypatch.setattr(segment_rewriter, "complete_segment", complete)
    assert extract_inboxes(index.directory, [BOB], tmp_path / "bob").messages == 1


def test_a_damaged_index_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(number, body=f"words {number} " * 300) for number in range(200)])
    database = index.directory / "segment-1" / "messages.sqlite"
    content = bytearray(database.read_bytes())
    for page in range(len(content) // 4096 // 4, len(content) // 4096 // 2):
        content[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    database.write_bytes(content)
    with raises("store.index-damaged", index.directory):
        extract_inboxes(index.directory, [BOB], tmp_path / "bob")
    with raises("store.index-damaged", index.directory):
        extend_mail_index([], index.directory, compact=True)
    assert list((tmp_path / "bob").iterdir()) == []
    assert not (index.directory / ".partial").exists()
