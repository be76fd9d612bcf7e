"""Measure how many of the real questions are answered by the first messages that a search for their words finds.

A question's keywords are its words without stop words. A search is for all of them, or, if no message has all, also for
the messages that have most of them. A question counts if one of the messages that answer it is found; a duplicate
with equal subject, text and sender counts as the same message. With threads, each thread is one hit, and it counts if
one of its messages answers the question. A search by meaning is for the whole question.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gumshoe.embeddings.search_options import DENSE_WEIGHT, NO_EMBEDDING
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex
from gumshoe.mail.search_arguments import MEANING_WEIGHT
from tests.benchmarks.mail_corpus import DATA, Query, choose_keywords, real_messages, real_questions
from tests.benchmarks.mail_engines import Plain

QuestionSearch = Callable[[Query], list[list[str]]]
"""Return hits, best first. Each is a message or a thread, given by its ids."""
_SHOWN = (3, 10)
_WEIGHTS = {
    "ours, any word of the question": 0.0,
    f"ours, words and meaning ({MEANING_WEIGHT})": MEANING_WEIGHT,
    f"ours, words and meaning ({DENSE_WEIGHT})": DENSE_WEIGHT,
    "ours, meaning": 1.0,
}
"""Weight of vectors in each search by meaning."""


def measure_questions(directory: Path, embedding: str) -> tuple[str, list[str], list[list[str]]]:
    """Return title, header and rows of a table of searches: with vectors, too, unless `embedding` is "none"."""
    content = {each["message_id"]: (each["subject"], each["body"], each["from"]) for each in real_messages()}
    questions = [each for each in real_questions() if all(known in content for known in each["message_ids"])]
    queries = [Query("question", each["inbox_address"], choose_keywords(each["question"])) for each in questions]
    expected = [{content[known] for known in each["message_ids"]} for each in questions]
    found = {
        name: [search(query) if query.keywords else [] for query in queries]
        for name, search in _open_searches(directory).items()
    }
    if embedding != NO_EMBEDDING:
        asked = [(each["inbox_address"], each["question"]) for each in questions]
        found |= _search_by_meaning(directory, embedding, asked)
    rows = []
    for name, results in found.items():
        shares = [
            sum(
                any(content[known] in wanted for hit in hits[:most] for known in hit)
                for wanted, hits in zip(expected, results, strict=True)
            )
            / len(queries)
            for most in _SHOWN
        ]
        nothing = sum(not hits for hits in results) / len(queries)
        rows.append([name, *(f"{100 * share:.1f} %" for share in (*shares, nothing))])
    title = f"{len(queries)} real questions: share whose message is among the first hits, by relevance"
    return title, ["search", *(f"first {most}" for most in _SHOWN), "finds nothing"], rows


def _search_by_meaning(
    directory: Path, embedding: str, asked: list[tuple[str, str]]
) -> dict[str, list[list[list[str]]]]:
    """Return the hits for each question (inbox and text). Only the inboxes of questions are embedded."""
    options = MailBuildOptions(embedding=embedding, inboxes=tuple(sorted({inbox for inbox, _ in asked})))
    build_mail_index([f"jsonl:{DATA / 'mail.jsonl.gz'}"], directory / "meaning", options)
    index = MailIndex(directory / "meaning")
    return {
        name: [
            [[hit.message_id] for hit in index.search_by_meaning(inbox, text, dense_weight=weight)]
            for inbox, text in asked
        ]
        for name, weight in _WEIGHTS.items()
    }


def _open_searches(directory: Path) -> dict[str, QuestionSearch]:
    build_mail_index([f"jsonl:{DATA / 'mail.jsonl.gz'}"], directory / "ours")
    index = MailIndex(directory / "ours")
    without_stems = Plain(directory / "words.sqlite")
    with_stems = Plain(directory / "stems.sqlite", "porter unicode61 remove_diacritics 2")
    for each in (without_stems, with_stems):
        each.build(real_messages())
        each.open()

    def search_all(query: Query, **options: Any) -> list[list[str]]:
        return [[hit.message_id] for hit in index.search(query.inbox, query.keywords, **options)]

    def search_most(query: Query, **options: Any) -> list[list[str]]:
        hits = index.search_partially(query.inbox, query.keywords, **options).hits
        return search_all(query, **options) or [[hit.message_id] for hit in hits]

    def search_threads(query: Query) -> list[list[str]]:
        hits = search_most(query, one_per_thread=True)
        return [[each.message_id for each in index.read_thread(query.inbox, hit)] for (hit,) in hits]

    return {
        "FTS5 without stems, all words": lambda query: _search_all(without_stems, query),
        "FTS5 with stems, all words": lambda query: _search_all(with_stems, query),
        "ours, all words": search_all,
        "FTS5 without stems, then any word": lambda query: _search_any(without_stems, query),
        "FTS5 with stems, then any word": lambda query: _search_any(with_stems, query),
        "ours, then most words": search_most,
        "ours, then most words, with threads": search_threads,
    }


def _search_all(plain: Plain, query: Query) -> list[list[str]]:
    return [[hit] for hit in plain.search(query, "relevance")]


def _search_any(plain: Plain, query: Query) -> list[list[str]]:
    return _search_all(plain, query) or [[hit] for hit in plain.search(query, "relevance", "OR")]
