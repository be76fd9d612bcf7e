"""Search and read: results, their order, and errors for invalid arguments."""

import contextlib
import json
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from email.message import EmailMessage
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.index import MailIndex
from gumshoe.mail.schema import FILE_NAME, VERSION
from gumshoe.mail.search_arguments import MailSearchError
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record, write_jsonl

BOB = "bob@example.com"
LATER = datetime(2100, 1, 1, tzinfo=UTC)


def ids(index: MailIndex, keywords: list[str], inbox: str = BOB, **options: Any) -> list[int]:
    return [int(hit.message_id.strip("<>").split("@")[0]) for hit in index.search(inbox, keywords, **options)]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    records = [
        record(1, subject="Pipeline outage", body="The pipeline in Houston is down until Tuesday."),
        record(
            2, subject="Re: Pipeline outage", body="Thanks. Is the Houston office informed?", sender="eve@example.com"
        ),
        record(3, subject="Lunch", body='He said "the end" AND left; cost was $1,250.00 (NEAR the office).'),
        record(
            4,
            subject="Zürich",
            body="Café au lait in Zürich, naïve plan",
            to=["Bob@Example.com"],
            cc=["cc@example.com"],
        ),
        record(5, subject="No date", body="A pipeline without a date", date=None),
        record(6, subject="Sent by Bob", body="The pipeline again", sender="bob@example.com", to=["ann@example.com"]),
        record(7, subject="Elsewhere", body="The pipeline of others", to=["carol@example.com"]),
        record(8, subject="Blind", body="pipeline pipeline", to=["ann@example.com"], bcc=[BOB, "carol@example.com"]),
    ]
    return make_index(tmp_path_factory.mktemp("index"), records)


def test_every_keyword_must_appear(index: MailIndex) -> None:
    assert sorted(ids(index, ["pipeline", "houston"])) == [1, 2]
    assert ids(index, ["pipeline", "lunch"]) == []


def test_a_keyword_with_spaces_is_a_phrase(index: MailIndex) -> None:
    assert ids(index, ["houston office"]) == [2]
    assert ids(index, ["office houston"]) == []


def test_query_syntax_in_a_keyword_is_plain_text(index: MailIndex) -> None:
    assert ids(index, ['"the end" AND']) == [3]
    assert ids(index, ["NEAR"]) == [3]
    assert ids(index, ["the OR zebra"]) == []
    assert ids(index, ["subject:lunch"]) == []
    assert ids(index, ["lun*"]) == []
    assert ids(index, ["^Lunch"]) == [3]
    assert ids(index, ["$1,250.00"]) == [3]


def test_case_and_accents_are_ignored(index: MailIndex) -> None:
    assert ids(index, ["ZURICH", "cafe", "NAIVE"]) == [4]


@pytest.fixture(scope="module")
def compounds(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    records = [
        record(1, body="Answer this e-mail by 9 p.m."),
        record(2, body="Answer this email by 9 pm", sender="Patrick ONeil <pat@example.com>"),
        record(3, body="Answer this e mail", sender="Søren Müller <sm@example.com>"),
        record(4, body="No answer", sender="Patrick O'Neil <po@example.com>"),
        record(5, body="No answer", sender="jack.oneil@example.com"),
    ]
    return make_index(tmp_path_factory.mktemp("compounds"), records)


@pytest.mark.parametrize("order", ["relevance", "date"])
def test_a_word_of_several_parts_is_found_in_each_way_to_write_it(compounds: MailIndex, order: Any) -> None:
    assert sorted(ids(compounds, ["e-mail"], order=order)) == [1, 2, 3]
    assert sorted(ids(compounds, ["email"], order=order)) == [1, 2]
    assert sorted(ids(compounds, ["answer", "this e-mail"], order=order)) == [1, 2, 3]
    assert sorted(ids(compounds, ["9 PM", "e-mail"], order=order)) == [1, 2]
    assert ids(compounds, ["e-mail"], sender="ONeil", order=order) == [2]
    assert compounds.search_partially(BOB, ["e-mail", "zebra"]).counts == {"e-mail": 3, "zebra": 0}
    assert {hit.snippet for hit in compounds.search(BOB, ["E-Mail", "answer"])} == {
        "Answer this e-mail by 9 p.m.", "Answer this email by 9 pm", "Answer this e mail"
    }  # fmt: skip


def test_people_are_found_in_each_way_to_write_their_names(compounds: MailIndex) -> None:
    for name in ("O'Neil", "ONeil", "o\u2019neil"):
        assert sorted(ids(compounds, [name])) == [2, 4, 5]
        assert sorted(ids(compounds, ["answer"], sender=name)) == [2, 4, 5]
    assert sorted(ids(compounds, ["Patrick O'Neil"])) == [2, 4]
    assert sorted(ids(compounds, ["answer"], sender="Patrick ONeil")) == [2, 4]
    for name in ("Søren Müller", "Soeren Mueller", "soren muller"):
        assert ids(compounds, [name]) == ids(compounds, ["answer"], sender=name) == [3]


def test_the_inbox_contains_sent_received_and_copied_mail(index: MailIndex) -> None:
    assert sorted(ids(index, ["pipeline"])) == [1, 2, 5, 6, 8]
    assert sorted(ids(index, ["pipeline"], inbox="<BOB@EXAMPLE.COM>")) == [1, 2, 5, 6, 8]
    assert ids(index, ["zurich"], inbox="CC@example.com") == [4]


def test_an_unknown_address_has_an_empty_inbox(index: MailIndex) -> None:
    assert ids(index, ["pipeline"], inbox="nobody@example.com") == []
    assert ids(index, ["pipeline"], sender="nobody@example.com") == []
    assert ids(index, ["pipeline"], recipient="nobody@example.com") == []


def test_sender_and_recipient_ignore_case(index: MailIndex) -> None:
    assert ids(index, ["pipeline"], sender="Eve@example.com") == [2]
    assert ids(index, ["pipeline"], recipient="ANN@example.com", order="date") == [8, 6]
    assert sorted(ids(index, ["pipeline"], recipient=BOB)) == [1, 2, 5, 8]


@pytest.mark.parametrize(
    ("dates", "found"),
    [
        ({"sent_after": "2001-05-03"}, [8, 6, 2]),
        ({"sent_before": "2001-05-03"}, [1]),
        ({"sent_after": date(2001, 5, 3), "sent_before": date(2001, 5, 4)}, [2]),
        ({"sent_after": datetime(2001, 5, 3, 12, 0, 1, tzinfo=UTC)}, [8, 6]),
        ({"sent_after": "2001-05-03T14:00:00+02:00", "sent_before": "2001-05-03T12:00:01"}, [2]),
        ({"sent_after": "2001-05-03T12:00:01Z", "sent_before": "2001-05-07T12:00:00Z"}, []),
    ],
)
def test_sent_after_is_inclusive_and_sent_before_exclusive(
    index: MailIndex, dates: dict[str, Any], found: list[int]
) -> None:
    assert ids(index, ["pipeline"], order="date", **dates) == found


def test_order_by_date_is_newest_first_and_undated_last(index: MailIndex) -> None:
    assert ids(index, ["pipeline"], order="date") == [8, 6, 2, 1, 5]


def test_list_messages_is_oldest_first_and_undated_last(index: MailIndex) -> None:
    listed = index.list_messages("<BOB@Example.com>")
    assert [int(message_id.strip("<>").split("@")[0]) for message_id, _ in listed] == [1, 2, 3, 4, 6, 8, 5]
    assert [sent for _, sent in listed][::6] == [datetime(2001, 5, 2, 12, tzinfo=UTC), None]
    assert index.list_messages("nobody@example.com") == []
    with raises("mail.invalid-address", "inbox", "'bob'"):
        index.list_messages("bob")


def test_limit_bounds_the_results(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(number, body=f"word {number}") for number in range(30)])
    assert len(ids(index, ["word"])) == 10
    assert len(ids(index, ["word"], limit=3)) == 3


def test_relevance_is_bm25_of_the_inbox_only(tmp_path: Path) -> None:
    """Compare the order with SQLite's own index of only this inbox."""
    words = ["gas", "power", "trade", "desk", "model", "risk", "price", "curve", "storage", "pipe"]
    bodies = [" ".join(words[(number * step) % 10] for step in range(1, 3 + number % 17)) for number in range(120)]
    records = [
        record(
            number,
            subject=words[number % 7],
            body=body,
            to=[BOB] if number % 3 else ["carol@example.com"],
            sender=f"s{number % 5}@example.com",
        )
        for number, body in enumerate(bodies)
    ]
    index = make_index(tmp_path, records, KEEP_ALL)
    oracle = sqlite3.connect(":memory:")
    oracle.execute("CREATE VIRTUAL TABLE f USING fts5(subject, body)")
    mine = [(number, each["subject"], each["body"]) for number, each in enumerate(records) if each["to"] == [BOB]]
    oracle.executemany("INSERT INTO f(rowid, subject, body) VALUES (?, ?, ?)", mine)
    for keywords in (["gas"], ["risk", "price"], ["power trade"], ["gas", "curve", "desk"]):
        match = " AND ".join(f'"{keyword}"' for keyword in keywords)
        rows = oracle.execute("SELECT rowid, round(bm25(f, 2.0, 1.0), 9) FROM f WHERE f MATCH ?", (match,)).fetchall()
        newest_first = {number: records[number]["date"] for number, _ in rows}
        rows.sort(key=lambda row: row[0])
        rows.sort(key=lambda row: newest_first[row[0]], reverse=True)
        rows.sort(key=lambda row: row[1])
        assert ids(index, keywords) == [number for number, _ in rows][:10], keywords


def test_a_hit_has_id_date_sender_subject_and_snippet(index: MailIndex) -> None:
    (hit,) = index.search(BOB, ["tuesday"])
    assert hit.message_id == "<1@example.com>"
    assert hit.sent == datetime(2001, 5, 2, 12, tzinfo=UTC)
    assert (hit.sender, hit.subject) == ("ann@example.com", "Pipeline outage")
    assert hit.snippet == "The pipeline in Houston is down until Tuesday."


def test_a_snippet_is_one_line_with_the_keywords(tmp_path: Path) -> None:
    body = "\n".join(f"filler{number} line" for number in range(400)) + "\nthe secret\tword is here\n" + "more " * 50
    index = make_index(tmp_path, [record(1, body=body)], KEEP_ALL)
    (hit,) = index.search(BOB, ["secret word"])
    assert "the secret word is here" in hit.snippet
    assert len(hit.snippet.split()) <= 26
    assert "\n" not in hit.snippet


def test_read_returns_the_date_in_the_sender_s_time_zone(tmp_path: Path) -> None:
    index = make_index(
        tmp_path,
        [record(1, date="2001-05-08T09:30:00-07:00", cc=["Cc Person <cc@example.com>"], x_from="Ann Lee </O=X>")],
    )
    message = index.read(BOB, "<1@example.com>")
    assert message.sent is not None
    assert message.sent.isoformat() == "2001-05-08T09:30:00-07:00"
    assert message.sender_name == "Ann Lee"
    assert [(each.role, each.address, each.name) for each in message.recipients] == [
        ("to", BOB, ""),
        ("cc", "cc@example.com", "Cc Person"),
    ]
    assert message.body == "Body of message 1"


@pytest.mark.parametrize("written", ["<1@example.com>", "1@example.com", "  <1@example.com> ", "<1@example.com"])
def test_read_accepts_an_id_without_brackets(index: MailIndex, written: str) -> None:
    assert index.read(BOB, written).message_id == "<1@example.com>"


@pytest.mark.parametrize(
    ("call", "code", "values"),
    [
        (lambda index: index.search(BOB, []), "mail.keyword-count", ["0", "1 to 32"]),
        (lambda index: index.search(BOB, ["x"] * 33), "mail.keyword-count", ["33", "1 to 32"]),
        (lambda index: index.search(BOB, "word"), "mail.invalid-keywords", []),
        (lambda index: index.search(BOB, ["a", 3]), "mail.invalid-keywords", []),
        (lambda index: index.search(BOB, [""]), "mail.keyword-without-words", ["''"]),
        (lambda index: index.search(BOB, ["fine", "?!"]), "mail.keyword-without-words", ["'?!'"]),
        (lambda index: index.search(BOB, ["x" * 201]), "mail.keyword-too-long", ["201", "200"]),
        (lambda index: index.search(BOB, ["a"], limit=0), "mail.invalid-limit", ["limit is 0", "1 to 10"]),
        (lambda index: index.search(BOB, ["a"], snippet_words=0), "mail.invalid-snippet-words", ["words is 0"]),
        (lambda index: index.search(BOB, ["a"], limit=11), "mail.invalid-limit", ["limit is 11", "1 to 10"]),
        (lambda index: index.search(BOB, ["a"], limit=True), "mail.invalid-limit", ["limit is True", "1 to 10"]),
        (lambda index: index.search(BOB, ["a"], order="best"), "mail.invalid-order", ["'best'", "'relevance'"]),
        (
            lambda index: index.search(BOB, ["a"], sent_after="2001-13-01"),
            "mail.invalid-date",
            ["sent_after", "'2001-13-01'", "YYYY-MM-DD"],
        ),
        (
            lambda index: index.search(BOB, ["a"], sent_before="yesterday"),
            "mail.invalid-date",
            ["sent_before", "'yesterday'", "YYYY-MM-DD"],
        ),
        (lambda index: index.search(BOB, ["a"], sent_before=7), "mail.invalid-date", ["sent_before is 7"]),
        (
            lambda index: index.search(BOB, ["a"], sent_after="2001-05-03", sent_before="2001-05-03"),
            "mail.empty-period",
            ["sent_after 2001-05-03", "sent_before 2001-05-03"],
        ),
        (lambda index: index.search(BOB, ["a"], sender="ann@"), "mail.invalid-address", ["sender is 'ann@'"]),
        (lambda index: index.search(BOB, ["a"], recipient=""), "mail.invalid-person", ["recipient is ''"]),
        (lambda index: index.search("bob", ["a"]), "mail.invalid-address", ["inbox is 'bob'"]),
        (lambda index: index.search("", ["a"]), "mail.invalid-address", ["inbox is ''"]),
        (lambda index: index.read(BOB, 7), "mail.invalid-message-id", ["message_id"]),
        (lambda index: index.read("", "<1@example.com>"), "mail.invalid-address", ["inbox is ''"]),
    ],
)
def test_each_invalid_argument_has_its_code(
    index: MailIndex, call: Callable[[MailIndex], object], code: str, values: list[str]
) -> None:
    with raises(code, *values) as raised:
        call(index)
    assert isinstance(raised.value, MailSearchError)


@given(keywords=st.lists(st.text(max_size=220), max_size=4))
def test_any_keyword_can_be_searched_for_or_is_rejected(index: MailIndex, keywords: list[str]) -> None:
    with contextlib.suppress(MailSearchError):
        index.search(BOB, keywords)


@given(
    words=st.lists(st.sampled_from(["houston", "pipeline", "the", "office"]), min_size=1, max_size=3),
    noise=st.text(st.characters(categories=["P", "S", "Zs", "Cc"], max_codepoint=0x2FF), min_size=1, max_size=5),
)
def test_punctuation_around_words_is_ignored(index: MailIndex, words: list[str], noise: str) -> None:
    noisy = noise.join(["", *words, ""])
    assert ids(index, [noisy]) == ids(index, [" ".join(words)])


def test_threads_can_share_an_index(index: MailIndex) -> None:
    inboxes = (BOB, "carol@example.com")
    alone = [index.search(inbox, ["pipeline"], sent_before=LATER) for inbox in inboxes]
    start = threading.Barrier(8)

    def run(worker: int) -> bool:
        start.wait()
        ends = [LATER + timedelta(seconds=1 + 8 * number + worker) for number in range(50)]  # none is cached
        return all(
            index.search(inboxes[worker % 2], ["pipeline"], sent_before=end) == alone[worker % 2] for end in ends
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def _count(path: Path, inbox: str) -> int:
    return len(MailIndex(path).search(inbox, ["pipeline"]))


@pytest.mark.ci
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_can_share_a_file(index: MailIndex, method: str) -> None:
    index.search(BOB, ["pipeline"])
    with get_context(method).Pool(2) as pool:
        assert pool.starmap(_count, [(index.path.parent, BOB)] * 8, chunksize=1) == [5] * 8


_shared: MailIndex | None = None


def _count_inherited(inbox: str) -> int:
    assert _shared is not None
    return len(_shared.search(inbox, ["pipeline"], limit=9))  # not cached before the fork


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_open_index_survives_a_fork(index: MailIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    index.search(BOB, ["pipeline"])
    monkeypatch.setattr("tests.mail.test_index._shared", index)
    with get_context("fork").Pool(2) as pool:
        assert pool.map(_count_inherited, [BOB] * 8, chunksize=1) == [5] * 8
    assert len(index.search(BOB, ["pipeline"], limit=9)) == 5


def test_changing_a_result_does_not_change_the_cache(index: MailIndex) -> None:
    hits = index.search(BOB, ["houston"])
    kept = list(hits)
    assert kept
    hits.clear()
    assert index.search(BOB, ["houston"]) == kept


def test_cached_results_are_not_shared_between_inboxes(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, body="Gas.")])
    for _ in range(2):
        assert len(index.search(BOB, ["gas"])) == 1
        assert index.read(BOB, "<1@example.com>").body == "Gas."
        assert index.search("eve@example.com", ["gas"]) == []
        with raises("mail.message-not-found", "'<1@example.com>'"):
            index.read("eve@example.com", "<1@example.com>")


def test_large_messages_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Callers choose the date of a question, and a message is another one for each date."""
    index = make_index(tmp_path, [record(1, body="gas " * 20_000), record(2, body="Oil.")], KEEP_ALL)
    large, small = ([index.read(BOB, f"<{number}@example.com>") for _ in range(2)] for number in (1, 2))
    assert small[0] is small[1]
    assert large[0] == large[1]
    tracemalloc.start()
    try:
        for days in range(20):
            index.read(BOB, "<1@example.com>", visible_before=LATER + timedelta(days))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5 * len(large[0].body)


def test_a_missing_index_is_reported(tmp_path: Path) -> None:
    with raises("mail.no-index", tmp_path, "gumshoe mail index"):
        MailIndex(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"not an index" * 1000])
def test_a_file_that_is_not_an_index_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with raises("store.index-damaged", tmp_path / FILE_NAME):
        MailIndex(tmp_path)


@pytest.mark.parametrize("name", ["messages.sqlite", "postings.bin"])
def test_a_truncated_index_is_reported(tmp_path: Path, name: str) -> None:
    built = make_index(tmp_path, [record(number, body="word " * 500) for number in range(200)])
    (path,) = built.directory.glob(f"*/{name}")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with raises("store.index-damaged", tmp_path):
        MailIndex(built.directory).search(BOB, ["word"])


@pytest.mark.parametrize("name", ["messages.sqlite", "postings.bin", ""])
def test_a_missing_file_of_an_index_is_reported(tmp_path: Path, name: str) -> None:
    built = make_index(tmp_path, [record(1)])
    (segment,) = built.directory.glob("segment-*")
    if name:
        (segment / name).unlink()
    else:
        segment.rename(tmp_path / "elsewhere")
    with raises("store.index-damaged", tmp_path):
        MailIndex(built.directory)


def test_a_disk_error_is_temporary(tmp_path: Path) -> None:
    path = tmp_path / "messages.sqlite"

    def fail() -> None:
        raise apsw.IOError("disk I/O error")

    with raises("store.index-unreadable", path, "disk I/O error") as raised, explain_damage(path):
        fail()
    assert raised.value.exit_status == 75


def test_an_index_with_another_schema_is_rejected(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1)])
    index.path.write_text(json.dumps({**json.loads(index.path.read_text()), "schema": 1}))
    with raises("mail.index-version", index.path, f"schema 1, not {VERSION}"):
        MailIndex(index.directory)


def test_a_missing_message_is_reported(index: MailIndex) -> None:
    with raises("mail.message-not-found", "'<77@example.com>'"):
        index.read(BOB, "<77@example.com>")


def test_names_of_people_are_found_as_keywords_and_filter_by_name(tmp_path: Path) -> None:
    records = [
        record(1, sender="Ann Lee <ann@example.com>", body="first"),
        record(2, sender="eve@example.com", to=[f"Bob Ek <{BOB}>"], bcc=["Zoe Quinn <zoe@example.com>"], body="second"),
    ]
    index = make_index(tmp_path, records)
    assert [ids(index, [word]) for word in ("lee", "ann lee", "lee ann", "ek", "eve")] == [[1], [1], [], [2], [2]]
    assert [ids(index, ["first"], sender=name) for name in ("Lee", "ann LEE", "ann", "bob")] == [[1], [1], [1], []]
    assert [ids(index, ["second"], recipient=name) for name in ("Ek", "zoe")] == [[2], []]
    assert ids(index, ["second"], inbox="zoe@example.com", recipient="Quinn") == [2]
    assert ids(index, ["quinn"]) == []


def test_a_search_without_results_has_partial_ones(index: MailIndex) -> None:
    found = index.search_partially(BOB, ["pipeline", "houston", "zebra"], sent_before="2001-05-04")
    assert found.counts == {"pipeline": 2, "houston": 2, "zebra": 0}
    assert sorted(hit.message_id for hit in found.hits) == ["<1@example.com>", "<2@example.com>"]
    best = index.search_partially(BOB, ["pipeline", "tuesday", "zebra"]).hits[0]
    assert best.message_id == "<1@example.com>"
    others = index.search_partially("eve@example.com", ["pipeline", "tuesday"])
    assert (others.counts, len(others.hits)) == ({"pipeline": 1, "tuesday": 0}, 1)


def test_attachments_are_searched_and_read(tmp_path: Path) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Message-ID"] = "ann@example.com", BOB, "<1@example.com>"
    message.set_content("See the file.")
    message.add_attachment("The deductible is 250 euros.", filename="policy 2024.txt")
    message.add_attachment(b"\x00\x01", maintype="application", subtype="octet-stream", filename="drive.bin")
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "1.eml").write_bytes(message.as_bytes())
    report = build_mail_index([f"eml:{tmp_path / 'mail'}"], tmp_path / "index")
    index = MailIndex(tmp_path / "index")
    assert report.attachments == {"read": 1, "unknown type": 1}
    (hit,) = index.search(BOB, ["deductible"])
    assert "The deductible is 250 euros." in hit.snippet
    assert ids(index, ["policy 2024"]) == [1]
    assert ids(index, ["file the deductible"]) == []
    read = index.read(BOB, "<1@example.com>")
    assert [(each.name, each.text, each.problem) for each in read.attachments] == [
        ("policy 2024.txt", "The deductible is 250 euros.", ""),
        ("drive.bin", "", "unknown type"),
    ]


@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
@pytest.mark.parametrize("extended", [False, True])
def test_the_earliest_copy_decides_id_and_date(tmp_path: Path, numbers: tuple[int, ...], extended: bool) -> None:
    dates = {1: "2001-05-03T12:00:00Z", 2: "2001-05-20T12:00:00Z", 3: None}
    copies = [record(number, subject="Same", body="gas", date=dates[number]) for number in numbers]
    index = make_index(tmp_path, copies[:1] if extended else copies)
    for place, each in enumerate(copies[1:] if extended else []):
        extend_mail_index([write_jsonl(tmp_path / f"{place}.jsonl", [each])], index.directory)
    index = MailIndex(index.directory)
    for until in (None, datetime(2001, 5, 10, tzinfo=UTC)):
        (hit,) = index.search("bob@example.com", ["gas"], visible_before=until)
        assert (hit.message_id, hit.sent) == ("<1@example.com>", datetime(2001, 5, 3, 12, tzinfo=UTC))
    assert index.search("bob@example.com", ["gas"], visible_before=datetime(2001, 5, 2, tzinfo=UTC)) == []
