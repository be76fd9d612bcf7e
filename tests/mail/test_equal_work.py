"""The work of a search or a reading is the same whatever others hold: what is counted does not depend on luck.

Counted are the steps of SQLite, the calls of functions, and the numbers that are read from postings and vectors.
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from gumshoe.artifacts import sqlite
from gumshoe.artifacts.sqlite import open_read_only
from gumshoe.embeddings.vectors import DenseRetriever
from gumshoe.environments.email import EmailEnvironment
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.postings_reader import InboxPostings
from gumshoe.scenarios.scenario import Scenario
from tests.embeddings.word_vectors import WordVectors
from tests.mail.mailbox import record, write_jsonl
from tests.tiers import nightly_except

ANN, BOB, CAROL, ZOE = (f"{name}@example.com" for name in ("ann", "bob", "carol", "zoe"))
LATER = datetime(2030, 1, 1, tzinfo=UTC)

# Of Bob, and last in each half one of Zoe: SQLite saves a step if what it reads is the last row of a table.
MINE = [
    record(1, subject="Budget", body="newsletter about the annual budget", cc=["dora@example.com"]),
    record(2, subject="Re: Budget", body="newsletter again", references=["<1@example.com>"]),
    record(5, subject="Note", body="my own note", sender=ZOE, to=[ZOE]),
    record(3, body="something else entirely"),
    record(4, body="a secret that both hold", bcc=["dora@example.com"]),
    record(6, subject="Note", body="another note", sender=ZOE, to=[ZOE]),
]


def related(number: int) -> list[dict[str, Any]]:
    """Return mail of others with the words, texts, ids, subjects and people of the searches."""
    others = {"sender": CAROL, "to": [f"u{number}@example.com"]}
    same = {"subject": "Budget", "body": MINE[0]["body"], "sender": ANN, "to": [f"v{number}@example.com"]}
    return [
        record(100 + number, **others, subject="Budget", body="newsletter about the merger, absent elsewhere"),
        record(300 + number, **same),
        record(500 + number, **others, message_id="<1@example.com>", body=f"the merger {number}"),
        record(700 + number, **others, references=["<1@example.com>", "<2@example.com>"], subject="Re: Budget"),
        {**MINE[4], "to": [f"w{number}@example.com"], "message_id": f"<{900 + number}@example.com>"},
    ]


def unrelated(number: int) -> list[dict[str, Any]]:
    """Return as much mail of others, with which the searches share nothing."""
    others = {"sender": f"x{number}@other.example", "to": [f"y{number}@other.example"]}
    return [
        record(20_000 + 10 * number + n, **others, subject=f"Topic {number}", body=f"quite different {number} {n}")
        for n in range(5)
    ]


def build(directory: Path, *batches: list[dict[str, Any]], embedder: WordVectors | None = None) -> MailIndex:
    """Index batches of mail, each as a segment of its own."""
    directory.mkdir(parents=True)
    options = MailBuildOptions(embedding="word-vectors" if embedder else "none")
    for number, records in enumerate(batches):
        source = write_jsonl(directory / f"{number}.jsonl", records)
        if number:
            extend_mail_index([source], directory / "index", embedder=embedder)
        else:
            build_mail_index([source], directory / "index", options, embedder=embedder)
    return MailIndex(directory / "index", embedder)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the work of the block in this thread."""
    work: Counter[str] = Counter()

    def count_call(_frame: FrameType, event: str, _argument: object) -> None:
        if event in {"call", "c_call"}:
            work[event] += 1

    def count_step() -> bool:
        work["steps"] += 1
        return False

    def open_counted(path: Path) -> apsw.Connection:
        database = open_read_only(path)
        database.set_progress_handler(count_step, 1)
        return database

    def count_numbers(kind: type, name: str, measure: Callable[..., int]) -> None:
        method = getattr(kind, name)

        def counting(*arguments: Any) -> Any:
            found = method(*arguments)
            work[name] += measure(found, *arguments)
            return found

        patch.setattr(kind, name, counting)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "open_read_only", open_counted)
        count_numbers(InboxPostings, "find", lambda found, *_: len(found.ordinals))
        count_numbers(InboxPostings, "_read_positions", lambda found, *_: len(found[0]))
        count_numbers(DenseRetriever, "score", lambda found, *_: len(found))
        count_numbers(DenseRetriever, "measure", lambda found, *_: len(found))
        gc.disable()  # it would call finalizers
        before = sys.getprofile()
        sys.setprofile(count_call)
        try:
            yield work
        finally:
            sys.setprofile(before)
            gc.enable()


def try_to_read(index: MailIndex, message_id: str, **options: Any) -> None:
    try:
        index.read(BOB, message_id, **options)
        index.read_thread(BOB, message_id, **options)
    except MessageNotFoundError:
        pass


def search(*keywords: str, **options: Any) -> Callable[[MailIndex], object]:
    return lambda index: index.search(BOB, list(keywords), **options)


def partially(*keywords: str, **options: Any) -> Callable[[MailIndex], object]:
    return lambda index: index.search_partially(BOB, list(keywords), **options)


def meaning(text: str, **options: Any) -> Callable[[MailIndex], object]:
    return lambda index: index.search_by_meaning(BOB, text, **options)


def read(message_id: str, **options: Any) -> Callable[[MailIndex], object]:
    return lambda index: try_to_read(index, message_id, **options)


def source(message_id: str, method: str) -> Callable[[MailIndex], object]:
    known: dict[str, Any] = {"id": "1", "question": "q", "answer": "a", "message_ids": ["x"]}
    known["query_date"] = "2029-01-01"
    return lambda index: getattr(EmailEnvironment, method)(index, Scenario(**known, inbox_address=BOB), message_id)


ACTIONS: dict[str, Callable[[MailIndex], object]] = {
    "a word of mine": search("newsletter"),
    "a word of others": search("merger"),
    "a word of nobody": search("zeppelin"),
    "words of both": search("newsletter", "merger"),
    "a phrase of mine": search("annual budget"),
    "a phrase of others": search("the merger"),
    "newest": search("newsletter", order="date"),
    "newest of others": search("merger", order="date"),
    "one per thread": search("newsletter", one_per_thread=True),
    "a sender of others": search("newsletter", sender=CAROL),
    "a sender of nobody": search("newsletter", sender="yan@example.com"),
    "a sender by name": search("newsletter", sender="carol"),
    "a recipient of others": search("newsletter", recipient="u1@example.com"),
    "a blind recipient": search("secret", recipient="dora@example.com"),
    "a day": search("merger", sent_after="2001-05-02", sent_before="2001-05-20"),
    "visible": search("newsletter", visible_before=LATER),
    "not visible": search("newsletter", visible_before=datetime(1999, 1, 1, tzinfo=UTC)),
    "partially": partially("newsletter", "merger"),
    "partially of others": partially("merger", "absent", sender=CAROL),
    "partially of nobody": partially("zeppelin", "airship"),
    "by meaning": meaning("the newsletter about the merger"),
    "by meaning of others": meaning("absent elsewhere", sender=CAROL),
    "by vectors": meaning("newsletter", dense_weight=1.0),
    "an id of mine": read("<1@example.com>"),
    "an id of a copy that others have": read("<4@example.com>"),
    "an id of others": read("<101@example.com>"),
    "an id of a copy of others": read("<301@example.com>"),
    "an id of nobody": read("<zeppelin@example.com>"),
    "an id as of a date": read("<2@example.com>", visible_before=LATER),
    "the list": lambda index: index.list_messages(BOB),
    "a source of mine": source("<1@example.com>", "read_source"),
    "a source of others": source("<101@example.com>", "read_source"),
    "a listed source": source("<301@example.com>", "find_source"),
}


def open_index(directory: Path, embedder: WordVectors | None) -> MailIndex:
    """Open an index, its files, statements and model, in an inbox with one message of its own."""
    index = MailIndex(directory, embedder)
    index.search_by_meaning(ZOE, "own")
    index.search_partially(ZOE, ["own", "note"], one_per_thread=True)
    index.read_thread(ZOE, index.search(ZOE, ["own"])[0].message_id)
    return index


def measure(monkeypatch: pytest.MonkeyPatch, directory: Path, *, embedder: WordVectors | None) -> dict[str, Any]:
    """Return the work of each action on an index that was just opened."""
    found = {}
    for name, action in ACTIONS.items():
        action(open_index(directory, embedder))  # what only the first call of a process does
        with counted(monkeypatch) as work:
            index = open_index(directory, embedder)
            work.clear()
            action(index)
        found[name] = dict(work)
    return found


OTHERS = range(1, 21)
SHAPES: dict[str, Callable[[list[dict[str, Any]]], list[list[dict[str, Any]]]]] = {
    "in one build": lambda others: [[*MINE, *others]],
    "before": lambda others: [others, MINE],
    "after": lambda others: [MINE, others],
    "around": lambda others: [others[::2], MINE[:3], others[1::2], MINE[3:]],
}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("has_vectors", "shape"),
    nightly_except([(True, "around"), (False, "in one build")], product((False, True), SHAPES)),
)
def test_the_work_does_not_depend_on_the_mail_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, has_vectors: bool
) -> None:
    embedder = WordVectors() if has_vectors else None
    counts = []
    for kind in (related, unrelated):
        others = [each for number in OTHERS for each in kind(number)]
        directory = tmp_path / kind.__name__
        build(directory, *SHAPES[shape](others), embedder=embedder)
        counts.append(measure(monkeypatch, directory / "index", embedder=embedder))
    assert counts[0] == counts[1]
    assert all(each["c_call"] for each in counts[0].values())
    assert counts[0]["a word of mine"]["steps"] > 100
    if has_vectors:
        assert counts[0]["by meaning"]["score"] > 0


@pytest.mark.ci
def test_what_others_searched_for_and_read_saves_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Carol do everything that Bob does, and hold all that Bob holds."""
    embedder = WordVectors()
    shared = [each if each["from"] == ZOE else {**each, "cc": [*each["cc"], CAROL]} for each in MINE]
    build(tmp_path / "mail", [*shared, *(each for number in OTHERS for each in related(number))], embedder=embedder)
    cold = measure(monkeypatch, tmp_path / "mail" / "index", embedder=embedder)
    for name, action in ACTIONS.items():
        with counted(monkeypatch) as work:
            index = open_index(tmp_path / "mail" / "index", embedder)
            with monkeypatch.context() as patch:
                patch.setitem(globals(), "BOB", CAROL)
                action(index)
            work.clear()
            action(index)
        assert dict(work) == cold[name], name


def test_a_thread_opens_all_segments_with_the_first_message_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, what others read in that thread would save the time of opening a segment."""
    index = build(tmp_path / "mail", MINE[:2], MINE[2:4], MINE[4:])
    index.search(BOB, ["newsletter"])  # opens the inbox, which other threads share
    opened: list[Path] = []

    def open_noted(path: Path) -> apsw.Connection:
        opened.append(path.parent)
        return open_read_only(path)

    monkeypatch.setattr(sqlite, "open_read_only", open_noted)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(index.read, BOB, "<1@example.com>").result().body == MINE[0]["body"]
    assert len(set(opened)) == len(opened) == 3


@pytest.mark.ci
def test_counting_notices_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "a", MINE)
    build(tmp_path / "b", [*MINE, record(9, body="newsletter")])
    one, other = (measure(monkeypatch, tmp_path / name / "index", embedder=None) for name in "ab")
    assert one["a word of mine"] != other["a word of mine"]
    assert one["a word of nobody"] == other["a word of nobody"]
