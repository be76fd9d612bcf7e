"""Matching of queries in one inbox through several segments, and its copies of messages."""

import random
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gumshoe.mail import inbox_view, segment_writer
from gumshoe.mail.build import extend_mail_index
from gumshoe.mail.inbox_view import InboxView, Query
from gumshoe.mail.postings import sort_key
from gumshoe.mail.schema import read_state
from gumshoe.mail.segment import InboxEntry, IndexSegments, OwnCopy, StoredCopy, sort_copies
from gumshoe.mail.terms import address_term
from gumshoe.mail.words import MailAnalyzer
from tests.mail.mailbox import KEEP_ALL, make_index, record, write_jsonl

BOB = "bob@example.com"
WORDS = ["gas"] * 9 + ["power"] * 9 + ["oil"] * 3 + ["zebra"]
SENDERS = ["ann@example.com"] * 30 + ["eve@example.com"]
SEARCHES = [
    ["gas"],
    ["zebra"],
    ["gas power"],
    ["gas", "power"],
    ["oil gas power"],
    ["zebra gas", "oil"],
    ["none", "gas"],
]
DAY = 24 * 3600
FIRST = int(datetime(2001, 5, 1, tzinfo=UTC).timestamp())


@pytest.fixture(scope="module")
def mail() -> list[dict[str, Any]]:
    rng = random.Random(1)
    dates = [f"2001-05-{day:02d}T00:00:00Z" for day in range(1, 29)]
    return [
        record(
            number,
            subject="",
            body=" ".join(rng.choices(WORDS, k=rng.randrange(1, 12))),
            date=rng.choice([*dates, None]),
            sender=rng.choice(SENDERS),
        )
        for number in range(1, 400)
    ]


@pytest.fixture(scope="module")
def view(mail: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> InboxView:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "_FULL_MESSAGES", 120)
        patch.setattr("gumshoe.mail.source_batches._BATCH", 40)
        segments = open_segments(make_index(tmp_path_factory.mktemp("view"), mail, KEEP_ALL).directory)
    assert len(segments.segments) > 2
    return InboxView(segments, BOB)


def open_segments(directory: Path) -> IndexSegments:
    return IndexSegments.open(directory, read_state(directory).segments)


def visible(copy: StoredCopy, entry: InboxEntry) -> list[list[str]]:
    return [each for number, each in enumerate(copy.recipients) if number not in entry.hidden]


def make_query(keywords: list[str], sender: str | None, after: int | None, before: int | None) -> Query:
    found = map(MailAnalyzer().analyze_query, keywords)
    words = tuple((tuple(zip(each.terms, each.offsets, strict=True)),) for each in found)
    return Query(words, (address_term("from", sender),) if sender else (), after, before)


def list_matches(
    mail: list[dict[str, Any]], keywords: list[str], sender: str | None, after: int | None, before: int | None
) -> list[int]:
    """Return the messages that match, the newest first, undated ones last."""
    found: list[tuple[int, int]] = []
    for number, each in enumerate(mail, 1):
        sent = datetime.fromisoformat(each["date"]).timestamp() if each["date"] else None
        in_period = (sent is not None and (after or 0) <= sent < (before or sent + 1)) or not (after or before)
        has_words = all(f" {keyword} " in f" {each['body']} " for keyword in keywords)
        if in_period and has_words and sender in (None, each["from"]):
            found.append((-sort_key(None if sent is None else int(sent), each["message_id"]), number))
    return [number for _, number in sorted(found)]


PERIODS = [(None, None), (FIRST + 3 * DAY, FIRST + 9 * DAY), (None, FIRST + 20 * DAY), (FIRST + 27 * DAY, None)]


@pytest.mark.parametrize("block", [1, 64])
def test_the_newest_are_found_as_by_a_loop(
    mail: list[dict[str, Any]], view: InboxView, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(inbox_view, "_BLOCK", block)
    for keywords, sender, period in product(SEARCHES, (None, "eve@example.com"), PERIODS):
        query, expected = make_query(keywords, sender, *period), list_matches(mail, keywords, sender, *period)
        assert [view.search(query, "date", limit) for limit in (1, 10)] == [expected[:1], expected[:10]]
        counts = [len(list_matches(mail, [each], sender, *period)) for each in keywords]
        assert view.count_each(query) == counts


def test_filters_do_not_change_the_order_by_relevance(mail: list[dict[str, Any]], view: InboxView) -> None:
    for keywords, sender, period in product(SEARCHES, (None, "eve@example.com"), PERIODS):
        everything = view.search(make_query(keywords, None, None, None), "relevance", len(mail))
        assert sorted(everything) == sorted(list_matches(mail, keywords, None, None, None))
        expected = set(list_matches(mail, keywords, sender, *period))
        found = view.search(make_query(keywords, sender, *period), "relevance", len(mail))
        assert found == [each for each in everything if each in expected]


def test_scores_do_not_depend_on_later_messages(mail: list[dict[str, Any]], tmp_path: Path) -> None:
    """Let the later messages be longer, and have other words, than those before the time."""
    until = FIRST + 10 * DAY
    rows = list(
        zip(mail, (each["date"] and datetime.fromisoformat(each["date"]).timestamp() for each in mail), strict=True)
    )
    before = [each for each, sent in rows if sent is not None and sent < until]
    later = [{**each, "body": f"{each['body']} gas" * 20} for each, sent in rows if sent is None or sent >= until]
    whole = open_segments(make_index(tmp_path / "whole", [*before, *later], KEEP_ALL).directory)
    alone = open_segments(make_index(tmp_path / "alone", before, KEEP_ALL).directory)
    for keywords in SEARCHES:
        query = make_query(keywords, None, None, None)
        bounded, expected = InboxView(whole, BOB, until).score_all(query), InboxView(alone, BOB).score_all(query)
        assert [each.tolist() for each in bounded] == [each.tolist() for each in expected]


def test_an_inbox_reads_its_own_copies_of_any_segment(tmp_path: Path) -> None:
    """Compare with what all inboxes hold, after copies were added and removed."""
    same = {"body": "same", "subject": "s"}
    hostile = '["bob@example.com",[],"x"]'
    first = [
        record(1, **same),
        record(2, message_id=hostile, to=["carol@example.com"], sender="carol@example.com"),
        record(3, bcc=["zoe@example.com"]),
    ]
    later = [record(4, **same), record(5, **same, to=["carol@example.com", "zoe@example.com"]), record(6)]
    directory = make_index(tmp_path, first).directory
    extend_mail_index([write_jsonl(tmp_path / "2.jsonl", later)], directory)
    extend_mail_index([write_jsonl(tmp_path / "3.jsonl", [record(7, **same)])], directory, remove=["4@example.com"])
    segments = open_segments(directory)
    held = 0
    for inbox in ("ann@example.com", BOB, "carol@example.com", "zoe@example.com", "nobody@example.com"):
        found = InboxView(segments, inbox).read_copies(range(1, 5))
        for number in range(1, 5):
            expected = [
                OwnCopy(
                    each.copy,
                    each.message_id,
                    each.sent,
                    each.utc_offset,
                    each.sender_name,
                    each.is_unverified,
                    visible(each, entry),
                    each.references,
                    entry.shown_id,
                )
                for each in sort_copies(segments.read_copies(number))
                if (entry := each.find_entry(inbox))
            ]
            assert found[number] == expected
            held += len(expected)
    assert held == 13
