"""Sync an index with its sources: it holds what they hold, and no mistake empties it."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.private_data import MARK
from gumshoe.mail import segment_rewriter, segment_writer, source_batches
from gumshoe.mail.attachments import AttachmentReader
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions, MailBuildReport
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.index import MailIndex
from gumshoe.mail.index_build import UNSURE
from gumshoe.mail.message import AttachedFile, Attachment
from gumshoe.mail.schema import FILE_NAME, read_state, write_state
from tests.conftest import CommandResult
from tests.errors import raises
from tests.kills import run_program
from tests.mail.mailbox import make_index, record, write_jsonl
from tests.mail.small_mailboxes import BOB, PEOPLE, mailboxes, observe
from tests.tiers import nightly_except

COUNTS = ("messages", "copies", "read", "kept_out", "unreadable", "attachments", "without_id", "inboxes")


def sync(directory: Path, records: list[dict[str, Any]], **options: Any) -> MailBuildReport:
    """Sync an index with a source of some records, which always has the same name."""
    source = write_jsonl(directory.parent / "mail.jsonl", records)
    return extend_mail_index([source], directory, sync=True, **options)


def strip_suffixes(shown: dict[str, Any]) -> dict[str, Any]:
    """Return what inboxes list, in any order, without the suffixes of ids that are used twice."""
    return {
        inbox: sorted((message_id.partition("#")[0], str(sent)) for message_id, sent in shown[inbox][0])
        for inbox in PEOPLE
    } | {"content": shown["content"]}


@pytest.mark.ci
@settings(max_examples=20)
@given(
    before=mailboxes,
    after=mailboxes,
    kept=st.integers(0, 8),
    options=st.sampled_from([None, MailBuildOptions(drop_duplicates=False), MailBuildOptions(inboxes=(BOB,))]),
)
def test_a_synced_index_holds_what_the_source_holds(
    before: list[dict[str, Any]], after: list[dict[str, Any]], kept: int, options: MailBuildOptions | None
) -> None:
    """Sync with some of the old records and some new ones, and then with the old ones again."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        index = make_index(directory, before, options)
        for number, records in enumerate(([*before[:kept], *after], before)):
            sync(index.directory, records)
            synced = MailIndex(index.directory)
            built = make_index(directory / str(number), records, options)
            assert strip_suffixes(observe(synced)) == strip_suffixes(observe(built))
            assert [synced.stats()[name] for name in COUNTS] == [built.stats()[name] for name in COUNTS]
        extend_mail_index([], index.directory, compact=True)
        assert observe(MailIndex(index.directory)) == observe(synced)


def test_a_sync_without_changes_writes_no_segment(tmp_path: Path) -> None:
    records = [record(1), record(1, body="used id"), record(2, sender="x", to=["y"]), record(3, body="z" * 6000)]
    index = make_index(tmp_path, records)
    before = observe(index)
    report = sync(index.directory, records)
    assert (report.just_removed, report.read, report.messages) == (0, 4, 3)
    assert observe(MailIndex(index.directory)) == before
    assert read_state(index.directory).segments == ("segment-1",)


def test_an_edited_message_keeps_its_id(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, body="draft"), record(2)])
    report = sync(index.directory, [record(1, body="final"), record(2)])
    assert report.just_removed == 1
    assert MailIndex(index.directory).read(BOB, "<1@example.com>").body == "final"
    assert {message_id for message_id, _ in MailIndex(index.directory).list_messages(BOB)} == {
        "<1@example.com>",
        "<2@example.com>",
    }


def test_messages_that_are_skipped_now_are_removed(tmp_path: Path) -> None:
    mailbox = tmp_path / "box"
    for name in ("cur", "new", "tmp"):
        (mailbox / name).mkdir(parents=True)
    for number in range(3):
        text = f"From: ann@example.com\nTo: bob@example.com\nMessage-ID: <{number}@x>\nSubject: s\n\nText {number}\n"
        (mailbox / "cur" / f"{number}:2,S").write_text(text)
    source = OwnedSource(f"maildir:{mailbox}", BOB)
    build_mail_index([source], tmp_path / "index")
    (mailbox / "cur" / "1:2,S").rename(mailbox / "cur" / "1:2,ST")
    (mailbox / "cur" / "2:2,S").unlink()
    report = extend_mail_index([source], tmp_path / "index", sync=True)
    assert (report.just_removed, report.kept_out) == (2, {"deleted": 1})
    assert [message_id for message_id, _ in MailIndex(tmp_path / "index").list_messages(BOB)] == ["<0@x>"]
    assert report.content == build_mail_index([source], tmp_path / "built").content


def test_attachments_of_known_messages_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mail").mkdir()
    for number in range(3):
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = PEOPLE[0], BOB, f"file {number}"
        message.set_content("see the file")
        message.add_attachment(f"gas {number}", filename="a.txt")
        (tmp_path / "mail" / f"{number}.eml").write_bytes(bytes(message))
        if number == 1:
            build_mail_index([f"eml:{tmp_path / 'mail'}"], tmp_path / "index")
    (tmp_path / "mail" / "0.eml").unlink()
    read, names = AttachmentReader.read, list[str]()

    def count(reader: AttachmentReader, file: AttachedFile) -> Attachment:
        names.append(file.name)
        return read(reader, file)

    monkeypatch.setattr(AttachmentReader, "read", count)
    report = extend_mail_index([f"eml:{tmp_path / 'mail'}"], tmp_path / "index", sync=True)
    assert (names, report.attachments, report.just_removed) == (["a.txt"], {"read": 2}, 1)
    assert len(MailIndex(tmp_path / "index").search(BOB, ["gas"])) == 2


def test_what_other_sources_held_is_removed(tmp_path: Path) -> None:
    """Copies of one message in two mailboxes: the other owner loses hers."""
    sources = [OwnedSource(write_jsonl(tmp_path / f"{name}.jsonl", [record(1)]), name) for name in PEOPLE[:2]]
    build_mail_index(sources, tmp_path / "index")
    report = extend_mail_index(sources[:1], tmp_path / "index", sync=True)
    index = MailIndex(tmp_path / "index")
    assert (report.just_removed, index.list_messages(BOB), len(index.list_messages(PEOPLE[0]))) == (1, [], 1)
    assert index.stats()["sources"] == [sources[0].to_fact()]


def test_an_empty_source_is_refused(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1)])
    before = (index.directory / FILE_NAME).read_bytes()
    with raises("mail.source-empty", tmp_path / "mail.jsonl"):
        sync(index.directory, [])
    assert (index.directory / FILE_NAME).read_bytes() == before
    assert {path.name for path in index.directory.iterdir()} == {FILE_NAME, MARK, "segment-1"}
    assert sync(index.directory, [], allow_missing=True).messages == 0
    assert sync(index.directory, []).messages == 0  # was empty before
    with raises("mail.no-sources"):
        extend_mail_index([], index.directory, sync=True)


def test_unreadable_items_keep_what_they_may_be(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1), record(2), record(3)])
    source, path = f"jsonl:{tmp_path / 'mail.jsonl'}", tmp_path / "mail.jsonl"

    def write(*lines: str) -> None:
        path.write_text("".join(line + "\n" for line in lines))

    def sync_again(**options: Any) -> MailBuildReport:
        return extend_mail_index([source], index.directory, sync=True, **options)

    one, two, four = (json.dumps(record(number)) for number in (1, 2, 4))
    write(one, "no json", four)
    for _ in range(2):
        report = sync_again()
        assert (report.just_removed, report.missing, report.messages, report.unreadable) == (0, 2, 4, {})
        assert report.doubtful == [f"{path}:2"]
    report = sync_again(allow_missing=True)
    assert (report.just_removed, report.missing, report.messages) == (2, 0, 2)
    assert report.unreadable == {"not JSON": 1}
    write(one, "no json", two)  # the same item is still unreadable, and hides nothing
    report = sync_again()
    assert (report.just_removed, report.missing, report.messages) == (1, 0, 2)
    write(one, "no json", two, "nor this")  # nothing is missing
    assert sync_again().unreadable == {"not JSON": 2}
    assert len(MailIndex(index.directory).list_unreadable()) == 2
    write(one, two)
    assert sync_again().unreadable == {}
    assert MailIndex(index.directory).list_unreadable() == []
    extend_mail_index([], index.directory, compact=True)
    assert MailIndex(index.directory).list_unreadable() == []
    assert report.content == build_mail_index([source], tmp_path / "built").content


def test_what_an_extension_could_not_read_hides_nothing(tmp_path: Path) -> None:
    """An item that was indexed, and that a later extension could not read, is not known to be nothing."""
    index = make_index(tmp_path, [record(1), record(2)])
    path = tmp_path / "mail.jsonl"
    path.write_text(json.dumps(record(1)) + "\nno json\n")
    source = f"jsonl:{path}"
    extend_mail_index([source], index.directory)
    for _ in range(2):
        extend_mail_index([], index.directory, compact=True)
        report = extend_mail_index([source], index.directory, sync=True)
        assert (report.just_removed, report.missing, report.doubtful) == (0, 1, [f"{path}:2"])
    assert extend_mail_index([source], index.directory, sync=True, allow_missing=True).just_removed == 1
    path.write_text("\nno json\n" + json.dumps(record(3)) + "\n")
    assert extend_mail_index([source], index.directory, sync=True).just_removed == 1  # known now


def link_folder(place: Path) -> Path:
    """Move the folder `Work` of a Maildir to another place, and link it."""
    target = place.with_name("elsewhere")
    (place / "Work").rename(target)
    (place / "Work").symlink_to(target)
    return target


def make_maildir(place: Path) -> str:
    """Write a Maildir with messages 1, 2 and 3, of which the last one is in the folder `Work`."""
    for number, folder in ((1, "cur"), (2, "cur"), (3, "Work/cur")):
        (place / folder).mkdir(parents=True, exist_ok=True)
        text = f"Message-ID: <{number}@example.com>\nFrom: ann@example.com\nTo: {BOB}\n\nText {number}.\n"
        (place / folder / f"{number}:2,").write_text(text)
    return f"maildir:{place}"


def test_a_link_that_the_index_lists_blocks_no_sync(tmp_path: Path) -> None:
    """Extensions see it again each time, and neither list it twice nor write a segment for it."""
    place, directory = tmp_path / "mail", tmp_path / "index"
    source = make_maildir(place)
    link_folder(place)
    build_mail_index([source], directory)
    other = tmp_path / "today.jsonl"
    for number in (7, 8):
        other.write_text(json.dumps(record(number)) + "\n")
        report = extend_mail_index([source, f"jsonl:{other}"], directory)
        assert report.unreadable == {"link to a directory": 1}
    segments = read_state(directory).segments
    assert extend_mail_index([source], directory).unreadable == {"link to a directory": 1}
    assert read_state(directory).segments == segments
    assert len(MailIndex(directory).list_unreadable()) == 1
    (place / "cur/2:2,").unlink()
    report = extend_mail_index([source, f"jsonl:{other}"], directory, sync=True)
    assert (report.just_removed, report.missing, report.messages) == (2, 0, 2)  # 2, and 7 of the first day


def test_a_known_item_stays_known_beside_one_that_an_extension_could_not_read(tmp_path: Path) -> None:
    place, directory, other = tmp_path / "mail", tmp_path / "index", tmp_path / "today.jsonl"
    source = make_maildir(place)
    link_folder(place)
    build_mail_index([source], directory)
    other.write_text(json.dumps(record(7)) + "\nno json\n")
    extend_mail_index([f"jsonl:{other}"], directory)
    (place / "cur/2:2,").unlink()
    report = extend_mail_index([source, f"jsonl:{other}"], directory, sync=True)
    assert (report.just_removed, report.doubtful) == (0, [f"{other}:2"])
    other.write_text(json.dumps(record(7)) + "\n")
    assert extend_mail_index([source, f"jsonl:{other}"], directory, sync=True).just_removed == 1


@pytest.mark.parametrize("extended", [False, True])
def test_a_folder_that_was_replaced_by_a_link_keeps_its_mail_until_that_is_allowed_once(
    extended: bool, tmp_path: Path
) -> None:
    place, directory = tmp_path / "mail", tmp_path / "index"
    source = make_maildir(place)
    build_mail_index([source], directory)
    target = link_folder(place)
    for _ in range(2):
        if extended:
            extend_mail_index([source], directory)
        report = extend_mail_index([source], directory, sync=True)
        assert (report.just_removed, report.missing, report.doubtful) == (0, 1, [f"{place}/Work"])
    report = extend_mail_index([source], directory, sync=True, allow_missing=True)
    assert (report.just_removed, report.messages) == (1, 2)
    (place / "cur/2:2,").unlink()
    report = extend_mail_index([source], directory, sync=True)
    assert (report.just_removed, report.doubtful) == (1, [])
    assert extend_mail_index([source, f"maildir:{target}"], directory, sync=True).messages == 2


def test_all_items_of_an_index_that_does_not_say_which_are_doubtful_are_doubtful_once(tmp_path: Path) -> None:
    place, directory = tmp_path / "mail", tmp_path / "index"
    source = make_maildir(place)
    link_folder(place)
    build_mail_index([source], directory)
    state = read_state(directory)
    write_state(directory, replace(state, facts={**state.facts, UNSURE: True}))
    extend_mail_index([source], directory)
    (place / "cur/2:2,").unlink()
    assert extend_mail_index([source], directory, sync=True).doubtful == [f"{place}/Work"]
    assert extend_mail_index([source], directory, sync=True, allow_missing=True).just_removed == 1
    (place / "cur/1:2,").unlink()
    (place / "cur/4:2,").write_text("From: ann@example.com\n\nText 4.\n")
    assert extend_mail_index([source], directory, sync=True).just_removed == 1


def test_a_source_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make_index(tmp_path, [record(1), record(2)])
    before = (index.directory / FILE_NAME).read_bytes()

    def fail(*_: object) -> None:
        raise OSError("lost")

    monkeypatch.setattr("gumshoe.mail.sources.read_lines", fail)
    with pytest.raises(Exception, match="lost"):
        sync(index.directory, [record(1)])
    assert (index.directory / FILE_NAME).read_bytes() == before
    assert {path.name for path in index.directory.iterdir()} == {FILE_NAME, MARK, "segment-1"}


_KILLED = """
import os, shutil, sys
from pathlib import Path
from gumshoe.mail import build, index_build, segment_rewriter, segment_writer, source_batches, sync_build
from gumshoe.mail.postings import PostingsWriter
from tests.kills import run_killed

source_batches._BATCH, segment_writer._FULL_MESSAGES, segment_rewriter._MERGED_TOGETHER = 100, 150, 2
how = {"compact": {"sync": True, "compact": True}, "merge": {}}[sys.argv[3]]
points = [
    (sync_build.SyncBuild, "_compare_batch", 2), (sync_build.SyncBuild, "_remove_missing", 1),
    (index_build.IndexBuild, "_add_batch", 2),
    (segment_writer, "create_database", 2), (PostingsWriter, "write", 1), (PostingsWriter, "write", 2),
    (segment_rewriter, "create_database", 1), (segment_rewriter, "complete_segment", 1), (os, "fsync", 4),
    (Path, "replace", 1), (Path, "replace", 2), (index_build, "mark_private", 1), (index_build, "write_state", 1),
    (index_build, "remove_leftovers", 1),
]
for number, point in enumerate(points):
    directory = Path(sys.argv[2], str(number))
    shutil.copytree(Path(sys.argv[2], "index"), directory)
    run_killed(*point, lambda: build.extend_mail_index([sys.argv[1]], directory, **how))
"""


@pytest.mark.ci
@pytest.mark.parametrize("how", nightly_except({"compact"}, ["compact", "merge"]))
def test_a_run_killed_at_any_point_changes_nothing_or_all(tmp_path: Path, how: str) -> None:
    before = [record(number, body=f"gas {number % 7} text {number}") for number in range(400)]
    index = make_index(tmp_path, before)
    for number in range(3):  # more segments, to merge
        extend_mail_index([write_jsonl(tmp_path / "mail.jsonl", [record(500 + number)])], index.directory)
    old = MailIndex(index.directory).stats()["content"]
    source = write_jsonl(tmp_path / "mail.jsonl", [*before[200:], *(record(number) for number in range(600, 900))])
    options: dict[str, Any] = {"merge": {}, "compact": {"sync": True, "compact": True}}[how]
    expected = build_mail_index([source], tmp_path / "built").content
    if how == "merge":
        everything = [
            *before,
            *(record(500 + number) for number in range(3)),
            *(record(each) for each in range(600, 900)),
        ]
        expected = make_index(tmp_path / "all", everything).stats()["content"]
    results = run_program(_KILLED, source, tmp_path, how)
    assert results.count(-signal.SIGKILL) >= 8
    for number in range(len(results)):
        directory = tmp_path / str(number)
        assert MailIndex(directory).stats()["content"] in {old, expected}
        assert extend_mail_index([source], directory, **options).content == expected
        assert {path.name for path in directory.iterdir()} == {FILE_NAME, MARK, *read_state(directory).segments}


def test_many_removals_are_written_in_several_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "_FULL_MESSAGES", 10)
    monkeypatch.setattr(source_batches, "_BATCH", 5)
    monkeypatch.setattr(segment_rewriter, "_MERGED_TOGETHER", 99)
    texts = {number: {"body": f"gas {number}", "subject": "s"} for number in range(25)}
    first = [record(number, **text) for number, text in texts.items()]
    second = [record(100 + number, **text, to=[BOB, "carol@example.com"]) for number, text in texts.items()]
    index = make_index(tmp_path, [*first, *second])
    sync(index.directory, second)
    built = make_index(tmp_path / "built", second)
    assert strip_suffixes(observe(MailIndex(index.directory))) == strip_suffixes(observe(built))


def test_the_command_syncs(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1), record(2)])
    source = write_jsonl(tmp_path / "mail.jsonl", [record(2), record(3)])
    ran = run("mail", "index", source, "--into", index.directory, "--sync")
    assert "1 removed" in ran.out
    (tmp_path / "mail.jsonl").write_text(json.dumps(record(2)) + "\nno json\n")
    ran = run("mail", "index", source, "--into", index.directory, "--sync")
    assert "1 messages were found in no source" in ran.out
    assert "removed" not in run("mail", "index", source, "--into", index.directory, "--compact").out
    for arguments in (
        ["--out", tmp_path / "new", "--sync"],
        ["--out", tmp_path / "new", "--compact"],
        ["--into", index.directory, "--allow-missing"],
        ["--into", index.directory, "--sync", "--remove", "<2@example.com>"],
    ):
        assert run("mail", "index", source, *arguments).code == "mail.option-conflict"
