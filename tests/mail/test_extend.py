"""Add to an index and remove from it: the result equals one build of the same mail, and open readers keep theirs."""

import errno
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.embeddings.embedder import Use, Vectors
from gumshoe.mail import index_build, message_preparer, segment_writer
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.segment import IndexSegments, StoredCopy
from tests.embeddings.word_vectors import WordVectors
from tests.errors import raises
from tests.mail.mailbox import make_index, record, write_jsonl
from tests.mail.small_mailboxes import BOB, IDS, PEOPLE, WORDS, mailboxes, observe


@pytest.mark.ci
@settings(max_examples=30)
@given(
    records=mailboxes, cut=st.integers(0, 8), options=st.sampled_from([None, MailBuildOptions(drop_duplicates=False)])
)
def test_an_extended_index_equals_one_build_of_the_same_mail(
    records: list[dict[str, Any]], cut: int, options: MailBuildOptions | None
) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        whole = make_index(directory / "whole", records, options)
        first, rest = records[: max(cut, 1)], records[max(cut, 1) :]
        index = make_index(directory / "parts", first, options)
        for number, each in enumerate(rest):
            extend_mail_index([write_jsonl(directory / f"{number}.jsonl", [each])], index.directory)
        assert observe(MailIndex(index.directory)) == observe(whole)


@settings(max_examples=30)
@given(records=mailboxes, removed=st.sampled_from(IDS))
def test_an_index_without_a_message_equals_a_build_without_it(records: list[dict[str, Any]], removed: str) -> None:
    left = [each for each in records if each["message_id"] != removed]
    if not left or len(left) == len(records):
        return
    with TemporaryDirectory() as name:
        index = make_index(Path(name) / "all", records)
        extend_mail_index([], index.directory, remove=[removed])
        shown, expected = observe(MailIndex(index.directory)), observe(make_index(Path(name) / "left", left))
        assert shown["content"] == expected["content"]
        for inbox in PEOPLE:
            assert sorted(shown[inbox][0]) == sorted(expected[inbox][0])
        assert MailIndex(index.directory).stats()["messages"] == len(
            {(each["subject"], each["body"], each["from"]) for each in left}
        )


def test_later_messages_stay_hidden_after_others_were_removed(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(number, body="gas") for number in range(1, 5)])
    extend_mail_index([], index.directory, remove=["<2@example.com>"])
    index, until = MailIndex(index.directory), datetime(2001, 5, 4, tzinfo=UTC)
    assert [each.message_id for each in index.search(BOB, ["gas"], visible_before=until)] == ["<1@example.com>"]
    for hidden in ("<2@example.com>", "<3@example.com>", "<4@example.com>"):
        with raises("mail.message-not-found", hidden):
            index.read(BOB, hidden, visible_before=until)


def test_open_readers_keep_the_index_as_it_was(tmp_path: Path) -> None:
    old = make_index(tmp_path, [record(1, body="word")])
    extend_mail_index(
        [write_jsonl(tmp_path / "2.jsonl", [record(2, body="word")])], old.directory, remove=["1@example.com"]
    )
    with ThreadPoolExecutor(1) as thread:  # another thread opens its own connections
        assert [hit.message_id for hit in thread.submit(old.search, BOB, ["word"]).result()] == ["<1@example.com>"]
    new = MailIndex(old.directory)
    assert [hit.message_id for hit in new.search(BOB, ["word"])] == ["<2@example.com>"]
    with pytest.raises(MessageNotFoundError):
        new.read(BOB, "<1@example.com>")
    assert (new.stats()["version"], new.stats()["removed"], new.stats()["segments"]) == (2, 1, 3)


def test_unchanged_segments_are_not_written_again(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1)])
    before = {path: path.stat() for path in index.directory.glob("segment-1/*")}
    extend_mail_index([write_jsonl(tmp_path / "2.jsonl", [record(2)])], index.directory)
    assert {path: path.stat() for path in index.directory.glob("segment-1/*")} == before


def test_small_segments_give_the_same_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    records = [
        record(number % 90, body=" ".join(rng.choices([*WORDS, "x", "y"], k=5)), to=rng.sample(PEOPLE, 2))
        for number in range(120)
    ]
    whole = observe(make_index(tmp_path / "whole", records))
    monkeypatch.setattr(segment_writer, "_FULL_MESSAGES", 7)
    monkeypatch.setattr("gumshoe.mail.source_batches._BATCH", 5)
    monkeypatch.setattr("gumshoe.mail.postings._BLOCK", 7)
    monkeypatch.setattr("gumshoe.mail.postings._CHUNK", 50)
    index = make_index(tmp_path / "small", records)
    assert index.stats()["segments"] > 5
    assert observe(index) == whole


def test_what_cannot_be_extended_is_an_error(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(1)])
    (tmp_path / "empty").mkdir()
    with raises("mail.no-index", tmp_path / "empty"):
        extend_mail_index([source], tmp_path / "empty")
    build_mail_index([source], tmp_path / "index")
    before = (tmp_path / "index" / "mail-index.json").read_bytes()
    with raises("mail.nothing-to-remove", "'<9@example.com>'"):
        extend_mail_index([], tmp_path / "index", remove=["<9@example.com>"])
    assert (tmp_path / "index" / "mail-index.json").read_bytes() == before
    assert not list((tmp_path / "index").glob(".*"))


def test_a_removed_message_can_be_added_again(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1), record(2)])
    before = observe(index)
    extend_mail_index([], index.directory, remove=["1@example.com"])
    extend_mail_index([write_jsonl(tmp_path / "1.jsonl", [record(1)])], index.directory)
    assert observe(MailIndex(index.directory)) == before


def test_a_message_in_nobodys_inbox_can_be_removed(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, sender="", to=[]), record(2)])
    report = extend_mail_index([], index.directory, remove=["1@example.com"])
    assert report.messages == 1
    with raises("mail.nothing-to-remove", "'1@example.com'"):
        extend_mail_index([], index.directory, remove=["1@example.com"])


def test_what_was_removed_can_be_added_again(tmp_path: Path) -> None:
    first = [record(1, body="word"), record(2, body="word", subject="Subject 1"), record(3, sender="Pat", to=["none"])]
    whole = make_index(tmp_path / "whole", first)
    index = make_index(tmp_path / "parts", first)
    ids = [each["message_id"] for each in first]
    again = write_jsonl(tmp_path / "again.jsonl", first)
    for _ in range(2):
        extend_mail_index([], index.directory, remove=ids)
        empty = MailIndex(index.directory).stats()
        assert [empty[name] for name in ("messages", "copies", "without_inbox")] == [0, 0, 0]
        extend_mail_index([again], index.directory)
    extend_mail_index([again], index.directory, remove=ids)
    assert observe(MailIndex(index.directory)) == observe(whole)
    names = ("messages", "copies", "without_inbox")
    assert [MailIndex(index.directory).stats()[name] for name in names] == [whole.stats()[name] for name in names]


def test_an_interrupted_extension_with_removals_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make_index(tmp_path, [record(1), record(2)])
    source = write_jsonl(tmp_path / "new.jsonl", [record(1, body="new"), record(3)])
    add = index_build.IndexBuild._add_batch

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(index_build.IndexBuild, "_add_batch", stop)
    with pytest.raises(KeyboardInterrupt):
        extend_mail_index([source], index.directory, remove=["<1@example.com>"])
    assert (index.directory / ".partial" / "segment-2").is_dir()
    monkeypatch.setattr(index_build.IndexBuild, "_add_batch", add)
    report = extend_mail_index([source], index.directory, remove=["<1@example.com>"])
    assert (report.messages, report.removed) == (3, 1)
    assert {message_id for message_id, _ in MailIndex(index.directory).list_messages(BOB)} == {
        f"<{number}@example.com>" for number in (1, 2, 3)
    }
    assert MailIndex(index.directory).read(BOB, "<1@example.com>").body == "new"


def test_an_id_with_a_suffix_is_not_one_that_the_index_has(tmp_path: Path) -> None:
    first, other = record(1), record(1, body="used id")
    listed = make_index(tmp_path / "listed", [first, other]).list_messages(BOB)
    (with_suffix,) = {message_id for message_id, _ in listed} - {"<1@example.com>"}
    records = [first, record(2, message_id=with_suffix), other]
    index = make_index(tmp_path / "parts", records[:2])
    extend_mail_index([write_jsonl(tmp_path / "more.jsonl", [other])], index.directory)
    assert len({message_id for message_id, _ in MailIndex(index.directory).list_messages(BOB)}) == 3
    assert observe(MailIndex(index.directory)) == observe(make_index(tmp_path / "whole", records))


def test_a_message_is_removed_by_the_id_that_a_search_shows(tmp_path: Path) -> None:
    records = [record(1), record(1, body="used id"), record(3, message_id="<3#a@example.com>")]
    directory = make_index(tmp_path, records).directory
    (second,) = [each for each, _ in MailIndex(directory).list_messages(BOB) if each.startswith("<1@example.com>#")]
    extend_mail_index([], directory, remove=[second])
    assert {each for each, _ in MailIndex(directory).list_messages(BOB)} == {"<1@example.com>", "<3#a@example.com>"}
    for name in (second, "<1@example.com>#abc"):
        with raises("mail.nothing-to-remove", name):
            extend_mail_index([], directory, remove=[name])
    extend_mail_index([], directory, remove=["3#a@example.com"])
    assert [each for each, _ in MailIndex(directory).list_messages(BOB)] == ["<1@example.com>"]


def test_an_id_stands_for_all_messages_that_have_it(tmp_path: Path) -> None:
    directory = make_index(tmp_path, [record(1), record(1, body="used id"), record(2)]).directory
    assert extend_mail_index([], directory, remove=["<1@example.com>"]).just_removed == 2
    assert [each for each, _ in MailIndex(directory).list_messages(BOB)] == ["<2@example.com>"]


def test_a_source_that_is_added_again_is_listed_once(tmp_path: Path) -> None:
    index, more = make_index(tmp_path, [record(1)]), write_jsonl(tmp_path / "more.jsonl", [record(2)])
    for _ in range(2):
        extend_mail_index([f"jsonl:{tmp_path / 'mail.jsonl'}", more], index.directory)
    assert MailIndex(index.directory).stats()["sources"] == [f"jsonl:{tmp_path / 'mail.jsonl'}", more]


def test_unreadable_items_are_listed_even_if_nothing_is_new(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1)])
    source, path = write_jsonl(tmp_path / "more.jsonl", [record(1)]), tmp_path / "more.jsonl"
    path.write_text(path.read_text() + "no json\n")
    assert extend_mail_index([source], index.directory).unreadable == {"not JSON": 1}
    assert [each[:2] for each in MailIndex(index.directory).list_unreadable()] == [(f"{path}:2", "not JSON")]


def test_the_copies_of_a_message_are_not_all_read_for_each_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that always writes the same text makes thousands of copies of one message."""
    same = [record(number, subject="done", body="no errors") for number in range(20)]
    index = make_index(tmp_path, same[:10])
    extend_mail_index([], index.directory, remove=["<0@example.com>"])
    read, reads = IndexSegments.read_copies, list[int]()

    def count(segments: IndexSegments, message: int) -> list[StoredCopy]:
        reads.append(message)
        return read(segments, message)

    monkeypatch.setattr(IndexSegments, "read_copies", count)
    extend_mail_index([write_jsonl(tmp_path / "more.jsonl", same[1:])], index.directory)
    assert len(reads) <= len(PEOPLE)  # once for each inbox
    assert len(MailIndex(index.directory)._segments.read_copies(1)) == 19


def test_a_segment_is_completed_if_a_message_has_many_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "_FULL_COPIES", 10)
    monkeypatch.setattr("gumshoe.mail.source_batches._BATCH", 5)
    records = [record(number, subject="s", body="gas", sender="", to=[]) for number in range(40)]
    index = make_index(tmp_path, records)
    assert (index.stats()["segments"], index.stats()["copies"], index.stats()["messages"]) == (4, 40, 1)


class _BrokenModel(WordVectors):
    """A model that fails when it embeds new messages."""

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        if any("new" in text for text in texts):
            raise RuntimeError("CUDA error")
        return super().embed(texts, use)


@pytest.mark.parametrize("sync", [False, True])
def test_faults_of_models_and_sources_are_no_damage_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    directory = make_index(tmp_path, [record(1)], MailBuildOptions(embedding="test"), WordVectors()).directory
    more = write_jsonl(tmp_path / "more.jsonl", [record(1), record(2, body="new")])
    with pytest.raises(RuntimeError, match="CUDA"):
        extend_mail_index([more], directory, sync=sync, allow_missing=True, embedder=_BrokenModel())
    for error in (MemoryError(), ValueError("a fault of a parser")):
        monkeypatch.setattr(message_preparer, "parse_item", _raise(error))
        with pytest.raises(type(error)):
            extend_mail_index([more], directory, sync=sync, embedder=WordVectors())
    monkeypatch.setattr(message_preparer, "parse_item", _raise(OSError(errno.ENOSPC, "No space left on device")))
    with raises("mail.sources-not-read", "No space"):
        extend_mail_index([more], directory, sync=sync, embedder=WordVectors())


def _raise(error: Exception) -> Any:
    def fail(_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("sync", [False, True])
def test_an_extension_of_a_damaged_index_names_the_index(tmp_path: Path, sync: bool) -> None:
    directory = make_index(tmp_path, [record(1), record(2)]).directory
    (segment,) = directory.glob("segment-*/*.sqlite")
    database = apsw.Connection(str(segment))
    database.execute("UPDATE copies SET recipients = 'x'; UPDATE messages SET attachments = 'x'")
    database.close()
    more = write_jsonl(tmp_path / "more.jsonl", [record(1), record(2, to=["carol@example.com"])])
    with raises("store.index-damaged", directory):
        extend_mail_index([more], directory, sync=sync)
    with raises("store.index-damaged", directory):
        extend_mail_index([], directory, remove=["1@example.com"])
    with raises("store.index-damaged", directory):
        extend_mail_index([], directory, remove=["1@example.com"], compact=True)
