"""Merge segments and compact an index: it shows the same, and removed text leaves the disk."""

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.mail import segment_rewriter
from gumshoe.mail.build import extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.inbox_extraction import extract_inboxes
from gumshoe.mail.index import MailIndex
from gumshoe.mail.schema import read_state
from gumshoe.mail.segment_rewriter import choose_merge
from tests.embeddings.word_vectors import WordVectors
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record, write_jsonl
from tests.mail.small_mailboxes import BOB, IDS, mailboxes, observe

COUNTS = ("messages", "copies", "inboxes", "without_inbox", "attachments", "unreadable")


def read_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def count(index: MailIndex) -> dict[str, Any]:
    facts = index.stats()
    return {name: facts[name] for name in COUNTS}


@pytest.mark.ci
@settings(max_examples=15)
@given(
    records=mailboxes,
    removed=st.dictionaries(st.integers(0, 7), st.sampled_from(IDS), max_size=3),
    together=st.sampled_from([2, 3]),
    options=st.sampled_from([None, MailBuildOptions(drop_duplicates=False)]),
)
def test_a_merged_index_shows_the_same(
    records: list[dict[str, Any]], removed: dict[int, str], together: int, options: MailBuildOptions | None
) -> None:
    """Add one message after the other, with removals between them, without merging and with it."""
    shown = []
    for size in (99, together):
        with TemporaryDirectory() as name, patch.object(segment_rewriter, "_MERGED_TOGETHER", size):
            directory = Path(name)
            index = make_index(directory, records[:1], options)
            held = {records[0]["message_id"]}
            for number, each in enumerate(records[1:]):
                if (gone := removed.get(number)) in held:
                    extend_mail_index([], index.directory, remove=[str(gone)])
                    held.discard(gone)
                extend_mail_index([write_jsonl(directory / "more.jsonl", [each])], index.directory)
                held.add(each["message_id"])
            merged = MailIndex(index.directory)
            seen = observe(merged), count(merged)
            extend_mail_index([], index.directory, compact=True)
            compacted = MailIndex(index.directory)
            assert (observe(compacted), count(compacted)) == seen
            assert compacted.stats()["segments"] == 1
            extend_mail_index([write_jsonl(directory / "all.jsonl", records)], index.directory)
            shown.append((seen, observe(MailIndex(index.directory)), count(MailIndex(index.directory))))
    assert shown[0] == shown[1]


def test_compaction_erases_what_was_removed(tmp_path: Path) -> None:
    secrets = {"subject": "secretsubject", "body": "secretbody", "to": ["gone@example.com"], "x_from": "Secret Sender"}
    index = make_index(tmp_path, [record(1), record(7, **secrets), record(3, body="stays")])
    extend_mail_index([write_jsonl(tmp_path / "more.jsonl", [record(4, body="new")])], index.directory)
    extend_mail_index([], index.directory, remove=["<7@example.com>"])
    old = MailIndex(index.directory)
    before = observe(old)
    gone = (b"secret", b"Secret", b"gone@example.com", b"7@example.com")
    assert all(each in read_bytes(index.directory) for each in gone)
    report = extend_mail_index([], index.directory, compact=True)
    assert not any(each in read_bytes(index.directory) for each in gone)
    assert observe(MailIndex(index.directory)) == before
    assert (report.content, report.messages) == (before["content"], 3)
    assert old.read(BOB, "<4@example.com>").body == "new"  # this thread has the old files open
    with ThreadPoolExecutor(1) as thread, raises("mail.index-replaced", index.directory):
        thread.submit(old.search, BOB, ["stays"]).result()
    extend_mail_index([write_jsonl(tmp_path / "again.jsonl", [record(7, **secrets)])], index.directory)
    assert MailIndex(index.directory).read(BOB, "<4@example.com>").body == "new"
    assert MailIndex(index.directory).read("gone@example.com", "<7@example.com>").body == "secretbody"


@pytest.mark.ci
def test_merged_segments_stay_as_long_as_a_reader_has_them_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_rewriter, "_MERGED_TOGETHER", 2)
    index = make_index(tmp_path, [record(1, body="gas")])
    directory = index.directory

    def list_segments() -> set[str]:
        return {path.name for path in directory.glob("segment-*")}

    for number in (2, 3, 4):
        extend_mail_index([write_jsonl(tmp_path / "more.jsonl", [record(number, body="gas")])], directory)
    assert list_segments() == {"segment-1", *read_state(directory).segments}  # `index` has the first one
    with ThreadPoolExecutor(1) as thread:  # another thread opens its own connections
        assert len(thread.submit(index.search, BOB, ["gas"]).result()) == 1
    code = "import sys; from pathlib import Path; from gumshoe.mail.build import extend_mail_index; "
    code += "extend_mail_index([sys.argv[1]], Path(sys.argv[2]))"
    source = write_jsonl(tmp_path / "more.jsonl", [record(5)])
    subprocess.run([sys.executable, "-c", code, source, str(directory)], check=True)
    assert "segment-1" in list_segments()  # as this process holds it
    del index
    gc.collect()
    extend_mail_index([write_jsonl(tmp_path / "more.jsonl", [record(6)])], directory)
    assert list_segments() == {*read_state(directory).segments}


def test_vectors_are_taken_over(tmp_path: Path) -> None:
    options = replace(KEEP_ALL, embedding="word-vectors")
    records = [record(number, body=f"the {word} leaks") for number, word in enumerate(["roof", "tank", "pipe", "boat"])]
    index = make_index(tmp_path, records[:2], options, WordVectors())
    for each in records[2:]:
        extend_mail_index([write_jsonl(tmp_path / "more.jsonl", [each])], index.directory, embedder=WordVectors())
    extend_mail_index([], index.directory, remove=["<1@example.com>"])
    extend_mail_index([], index.directory, compact=True)  # needs no model
    extract_inboxes(index.directory, [BOB], tmp_path / "bob")
    built = make_index(tmp_path / "built", [records[0], *records[2:]], options, WordVectors())
    for directory in (index.directory, tmp_path / "bob"):
        merged = MailIndex(directory, WordVectors())
        for query in ("the boat leaks", "tank", "roof of a pipe"):
            assert merged.search_by_meaning(BOB, query) == built.search_by_meaning(BOB, query)
            assert all(hit.dense_rank for hit in merged.search_by_meaning(BOB, query))
        vectors = [path.read_bytes() for path in directory.rglob("vectors.f2")]
        assert vectors == [path.read_bytes() for path in built.directory.rglob("vectors.f2")]


@pytest.mark.parametrize(
    ("size", "times"), [(1_000, 5), (10_000, 3), (30_000, 3), (100_000, 2), (400_000, 1), (1_500_000, 1)]
)
def test_few_segments_are_left_and_no_mail_is_merged_often(size: int, times: int) -> None:
    sizes = [6_000_000] * 3
    merged = largest = 0
    days = 1_000
    for _ in range(days):
        sizes.append(size)
        if last := choose_merge(sizes):
            together = sum(sizes[-last:])
            merged, largest = merged + together, max(largest, together)
            sizes[-last:] = [together]
        assert sum(each < 2_000_000 for each in sizes) <= 24
    assert largest < 4_000_000
    assert merged <= times * days * size
