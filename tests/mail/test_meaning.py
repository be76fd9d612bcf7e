"""Search by meaning: vectors beside words, within one inbox."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.embeddings.embedder import OFFLINE_MODEL, SentenceEmbedder
from gumshoe.embeddings.search_options import Fusion
from gumshoe.embeddings.vectors import MIN_COMPARED, DenseRetriever
from gumshoe.mail.build import extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex
from gumshoe.mail.message_vectors import MessageVectors
from gumshoe.mail.search_results import Hit
from gumshoe.mail.segment import IndexSegments
from tests.embeddings.word_vectors import FailingVectors, WordVectors
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record, write_jsonl
from tests.mail.test_wall import contains_message, mailboxes, people

DENSE = replace(KEEP_ALL, embedding="word-vectors")
BOB, CAROL = "bob@example.com", "carol@example.com"
TOPICS = {
    "roof": "The roof of the garage leaks and must be repaired.",
    "lunch": "Shall we have lunch on Friday?",
    "gas": "Prices of natural gas rose again.",
    "trip": "My flight to Oslo leaves at seven.",
}


def numbered(bodies: list[str], **fields: Any) -> list[dict[str, Any]]:
    return [record(number, body=body, **fields) for number, body in enumerate(bodies)]


def ids(hits: list[Hit]) -> list[int]:
    return [int(hit.message_id.strip("<>").partition("@")[0]) for hit in hits]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    records = [*numbered(list(TOPICS.values())), *numbered(["Thing"] * 3, to=[CAROL])]
    for number, each in enumerate(records[4:], 4):
        each.update(message_id=f"<{number}@example.com>", body=f"The roof leaks, part {number}")
    return make_index(tmp_path_factory.mktemp("meaning"), records, DENSE, WordVectors())


def test_a_hit_has_the_ranks_of_both_retrievers(index: MailIndex) -> None:
    hits = index.search_by_meaning(BOB, "who repairs the roof")
    assert ids(hits)[0] == 0
    assert (hits[0].dense_rank, hits[0].lexical_rank) == (1, 1)
    assert sorted(hit.dense_rank or 0 for hit in hits) == [1, 2, 3, 4]
    assert hits[0].snippet == TOPICS["roof"]
    assert {(hit.dense_rank, hit.lexical_rank) for hit in index.search(BOB, ["roof"])} == {(None, None)}


def test_the_weight_selects_the_retriever(index: MailIndex) -> None:
    query = "the roof and the gas and lunch"
    words = index.search_by_meaning(BOB, query, dense_weight=0)
    assert [hit.lexical_rank for hit in words] == list(range(1, len(words) + 1))
    assert {hit.dense_rank for hit in words} == {None}
    assert 3 not in ids(words)
    vectors = index.search_by_meaning(BOB, query, dense_weight=1)
    assert [hit.dense_rank for hit in vectors] == [1, 2, 3, 4]
    assert {hit.lexical_rank for hit in vectors} == {None}


def test_ranks_equal_those_of_each_retriever_alone(index: MailIndex) -> None:
    query = "gas prices and a flight to lunch"
    alone = [ids(index.search_by_meaning(BOB, query, dense_weight=weight)) for weight in (1, 0)]
    fusion: Fusion
    for fusion in ("score", "rank"):
        hits = index.search_by_meaning(BOB, query, fusion=fusion)
        for hit, number in zip(hits, ids(hits), strict=True):
            for rank, listed in zip((hit.dense_rank, hit.lexical_rank), alone, strict=True):
                assert rank == (listed.index(number) + 1 if number in listed else None)


@pytest.mark.parametrize(("others", "found"), [(63, [0]), (64, [])])
def test_the_first_words_of_a_long_query_are_compared(index: MailIndex, others: int, found: list[int]) -> None:
    query = " ".join([*(f"other{number}" for number in range(others)), "roof"])
    assert ids(index.search_by_meaning(BOB, query, dense_weight=0)) == found


def test_filters_apply_to_both_retrievers(tmp_path: Path) -> None:
    people = ("ann@example.com", "dave@example.com", "dave@example.com")
    records = [record(number, body="the roof", sender=each) for number, each in enumerate(people)]
    index = make_index(tmp_path, records, DENSE, WordVectors())
    assert sorted(ids(index.search_by_meaning(BOB, "roof", sender="dave@example.com"))) == [1, 2]
    assert ids(index.search_by_meaning(BOB, "roof", sender="dave", sent_after="2001-05-03")) == [2]
    assert ids(index.search_by_meaning(BOB, "roof", sent_before="2001-05-02")) == [0]
    assert index.search_by_meaning(BOB, "roof", recipient=CAROL) == []
    assert len(index.search_by_meaning(BOB, "roof", limit=2)) == 2


def test_any_text_is_a_query(index: MailIndex) -> None:
    for text in ("?", "…", "\0", "the " * 3000, '" OR *', "屋根"):
        assert len(index.search_by_meaning(BOB, text)) in {0, 4}
    assert index.search_by_meaning(BOB, " \n") == []
    assert index.search_by_meaning("nobody@example.com", "roof") == []


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ({"query": 3}, "mail.invalid-query", "3"),
        ({"dense_weight": 1.1}, "mail.invalid-fusion", "1.1"),
        ({"dense_weight": "much"}, "mail.invalid-fusion", "'much'"),
        ({"fusion": "sum"}, "mail.invalid-fusion", "'sum'"),
        ({"limit": 11}, "mail.invalid-limit", "11"),
        ({"snippet_words": 1.5}, "mail.invalid-snippet-words", "1.5"),
        ({"inbox": "bob"}, "mail.invalid-address", "'bob'"),
    ],
)
def test_invalid_arguments_are_rejected(index: MailIndex, arguments: dict[str, Any], code: str, value: str) -> None:
    with raises(code, value):
        index.search_by_meaning(**{"inbox": BOB, "query": "roof", **arguments})


def test_without_vectors_words_are_compared(tmp_path: Path) -> None:
    index = make_index(tmp_path, numbered(list(TOPICS.values())), KEEP_ALL)
    assert not index.has_vectors
    (hit,) = index.search_by_meaning(BOB, "the roofs", limit=1)
    assert (ids([hit]), hit.dense_rank, hit.lexical_rank) == ([0], None, 1)


def test_a_long_message_is_found_by_one_of_its_parts(tmp_path: Path) -> None:
    filler = " ".join(f"Sentence {number} is about nothing in particular." for number in range(120))
    records = numbered([f"{filler} The roof leaks again. {filler}", filler])
    index = make_index(tmp_path, records, DENSE, WordVectors())
    hits = index.search_by_meaning(BOB, "leaks roof", dense_weight=1)
    assert ids(hits) == [0, 1]
    assert "The roof leaks again." in hits[0].snippet
    longer, _ = index.search_by_meaning(BOB, "leaks roof", dense_weight=1, snippet_words=60)
    assert "The roof leaks again." in longer.snippet
    assert len(longer.snippet) > 2 * len(hits[0].snippet)


# What changes


def test_removed_messages_are_not_found(tmp_path: Path) -> None:
    make_index(tmp_path, numbered(list(TOPICS.values())), DENSE, WordVectors())
    more = write_jsonl(tmp_path / "more.jsonl", [record(9, body="A leak in the roof of the church")])
    extend_mail_index([more], tmp_path / "index", remove=["0@example.com"], embedder=WordVectors())
    index = MailIndex(tmp_path / "index", WordVectors())
    hits = index.search_by_meaning(BOB, "the roof leaks")
    assert sorted(ids(hits)) == [1, 2, 3, 9]
    assert ids(hits)[0] == 9


def test_another_model_than_that_of_the_index_is_rejected(tmp_path: Path) -> None:
    make_index(tmp_path, numbered(list(TOPICS.values())), DENSE, WordVectors())
    other = WordVectors("other")
    with raises("mail.other-embedding-model", "other", "word-vectors"):
        MailIndex(tmp_path / "index", other).search_by_meaning(BOB, "roof")
    more = write_jsonl(tmp_path / "more.jsonl", [record(9)])
    with raises("mail.other-embedding-model", "other", "word-vectors"):
        extend_mail_index([more], tmp_path / "index", embedder=other)


def test_a_query_that_cannot_be_embedded_is_reported(tmp_path: Path) -> None:
    make_index(tmp_path, numbered(list(TOPICS.values())), DENSE, WordVectors())
    with raises("embeddings.unreachable"):
        MailIndex(tmp_path / "index", FailingVectors()).search_by_meaning(BOB, "roof")


@pytest.mark.parametrize("name", ["chunks.i4", "vectors.f2", "signs.u8", "center.f4"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_vectors_are_rejected(tmp_path: Path, name: str, damage: str) -> None:
    make_index(tmp_path, numbered(list(TOPICS.values())), DENSE, WordVectors())
    (path,) = (tmp_path / "index").glob(f"segment-*/{name}")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with raises("store.index-damaged", path):
        MailIndex(tmp_path / "index")


# The wall


@pytest.mark.ci
@settings(max_examples=12)
@given(records=mailboxes, inbox=people, query=st.lists(st.sampled_from(["gas", "power", "secret"]), min_size=1))
def test_results_are_the_same_as_if_the_inbox_were_alone(
    records: list[dict[str, Any]], inbox: str, query: list[str]
) -> None:
    mine = [each for each in records if contains_message(each, inbox)]
    with TemporaryDirectory() as directory:
        found = [
            make_index(Path(directory) / name, listed, DENSE, WordVectors()).search_by_meaning(
                inbox, " ".join(query), dense_weight=weight
            )
            for weight in (0.0, 0.8)
            for name, listed in ((f"whole-{weight}", records), (f"alone-{weight}", mine))
        ]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert {hit.message_id for hit in found[2]} <= {each["message_id"] for each in mine}


def test_a_question_sees_the_inbox_as_it_was(tmp_path: Path) -> None:
    records = [record(number, body=f"The roof leaks {'again ' * (number % 5)}") for number in range(12)]
    day = datetime(2001, 5, 8, tzinfo=UTC)
    whole = make_index(tmp_path / "whole", [*records, record(40, body="roof", date="")], DENSE, WordVectors())
    early = make_index(tmp_path / "early", records[:7], DENSE, WordVectors())
    for weight in (0.0, 0.8, 1.0):
        found = whole.search_by_meaning(BOB, "the roof again", dense_weight=weight, visible_before=day)
        assert found == early.search_by_meaning(BOB, "the roof again", dense_weight=weight)
        assert len(found) == 7


class CountedRows:
    """Count the vectors and the sign bits that searches look at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, int] = {}
        for name in ("measure", "score"):
            monkeypatch.setattr(DenseRetriever, name, self._count(name, getattr(DenseRetriever, name)))

    def _count(self, name: str, original: Any) -> Any:
        def counted(dense: DenseRetriever, query: Any, chunks: Any = None) -> Any:
            self.counts[name] = self.counts.get(name, 0) + len(chunks)
            return original(dense, query, chunks)

        return counted


def make_mailbox(own: int, others: int) -> list[dict[str, Any]]:
    """Return mail of Bob, each after the same number of messages of Carol."""
    words = list(TOPICS.values())
    records = []
    for number in range(own):
        body = f"{words[number % 4]} Number {number * 17}."
        records += [
            record(own + number * others + each, body=f"Secret {number}-{each}. {body}", to=[CAROL])
            for each in range(others)
        ]
        records.append(record(number, body=body, sender="dave@example.com"))
    return records


@pytest.mark.ci
@pytest.mark.parametrize("own", [300, MIN_COMPARED + 200])
def test_neither_results_nor_work_depend_on_other_inboxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: int
) -> None:
    found, work = [], []
    for others in (0, 2):
        index = make_index(tmp_path / str(others), make_mailbox(own, others), DENSE, WordVectors())
        assert index.stats()["vectors"] == own * (1 + others)
        index.search_by_meaning(CAROL, "warm up")
        with monkeypatch.context() as context:
            rows = CountedRows(context)
            found.append(index.search_by_meaning(BOB, "when does the flight leave, number 170?"))
            work.append(rows.counts)
    assert found[0] == found[1]
    assert work[0] == work[1]
    assert work[0].get("measure", 0) == (own if own > MIN_COMPARED else 0)
    assert work[0]["score"] <= MIN_COMPARED + 2 * 200


def test_sign_bits_find_what_all_vectors_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make_index(tmp_path, make_mailbox(MIN_COMPARED + 500, 0), DENSE, WordVectors())
    queries = ["the flight number 170", "gas 34", "lunch on friday", "who repairs the garage"]
    quick = [index.search_by_meaning(BOB, query, dense_weight=1) for query in queries]
    monkeypatch.setattr("gumshoe.mail.message_vectors.count_compared", lambda chunks: chunks)
    exact = MailIndex(tmp_path / "index", WordVectors())
    for query, hits in zip(queries, quick, strict=True):
        assert ids(exact.search_by_meaning(BOB, query, dense_weight=1))[:5] == ids(hits)[:5]


def test_messages_are_ranked_by_all_of_their_chunks(index: MailIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the chunks with the nearest sign bits give the messages another order than all chunks."""
    query = "who repairs the roof"
    expected = index.search_by_meaning(BOB, query)
    find_nearest = MessageVectors.find_nearest

    def find_in_reverse(*arguments: Any) -> tuple[Any, Any]:
        places, scores = find_nearest(*arguments)
        return places, -scores

    monkeypatch.setattr(MessageVectors, "find_nearest", find_in_reverse)
    assert MailIndex(index.directory, WordVectors()).search_by_meaning(BOB, query) == expected


def test_a_message_without_chunks_is_as_far_as_the_farthest(tmp_path: Path) -> None:
    """Let a message have no text at all, so that only its sender's name is found."""
    records = [*numbered(["the roof leaks", "gas prices"]), record(2, subject="", body="", sender="roof@example.com")]
    index = make_index(tmp_path, records, DENSE, WordVectors())
    vectors = MessageVectors(IndexSegments.open_present(index.directory)[1])
    (query,) = WordVectors().embed(["the roof"], "query")
    scores, chunks = vectors.score(query, np.arange(1, 4))
    assert [chunk is None for chunk in chunks] == [False, False, True]
    assert scores[2] == min(scores[:2]) < max(scores[:2])
    found = {number: hit for hit in index.search_by_meaning(BOB, "the roof") for number in ids([hit])}
    assert (found[2].dense_rank, found[2].lexical_rank) == (None, 2)


@pytest.mark.ci
def test_a_real_model_finds_other_words_in_one_inbox(tmp_path: Path) -> None:
    options = MailBuildOptions(embedding=OFFLINE_MODEL)
    others = [record(10 + number, body=body, to=[CAROL]) for number, body in enumerate(TOPICS.values())]
    model = SentenceEmbedder(OFFLINE_MODEL)
    found = []
    for name, records in (("alone", []), ("whole", others)):
        index = make_index(tmp_path / name, [*records, *numbered(list(TOPICS.values()))], options, model)
        assert index.has_vectors
        assert index.stats()["dimensions"] == 384
        for query, topic in (("airplane departure to Norway", "trip"), ("eating at noon", "lunch")):
            hits = index.search_by_meaning(BOB, query, dense_weight=1)
            assert ids(hits)[0] == list(TOPICS).index(topic)
            assert len(hits) == len(TOPICS)
            found.append((name, hits))
    assert [hits for name, hits in found if name == "alone"] == [hits for name, hits in found if name == "whole"]
