"""Measure how many of the real questions are answered by the first messages that a search for their words finds.

A question's keywords are its words without stop words. A search is for all of them, or, if no message has all, also for
the messages that have most of them. A question counts if one of the messages that answer it is found; a duplicate
with equal subject, text and sender counts as the same message.
"""

from collections.abc import Callable
from pathlib import Path

from gumshoe.mail.build import build_mail_index
from gumshoe.mail.index import MailIndex
from tests.benchmarks.mail_corpus import DATA, Query, choose_keywords, real_messages, real_questions
from tests.benchmarks.mail_engines import Plain

QuestionSearch = Callable[[Query], list[str]]
"""Return ids of messages, best first."""
_SHOWN = (3, 10)


def measure_questions(directory: Path) -> tuple[str, list[str], list[list[str]]]:
    """Return title, header and rows of a table of searches."""
    content = {each["message_id"]: (each["subject"], each["body"], each["from"]) for each in real_messages()}
    questions = [each for each in real_questions() if all(known in content for known in each["message_ids"])]
    queries = [Query("question", each["inbox_address"], choose_keywords(each["question"])) for each in questions]
    expected = [{content[known] for known in each["message_ids"]} for each in questions]
    rows = []
    for name, search in _open_searches(directory).items():
        found = [[content[hit] for hit in search(query)] if query.keywords else [] for query in queries]
        shares = [
            sum(bool(wanted & set(hits[:most])) for wanted, hits in zip(expected, found, strict=True)) / len(queries)
            for most in _SHOWN
        ]
        nothing = sum(not hits for hits in found) / len(queries)
        rows.append([name, *(f"{100 * share:.1f} %" for share in (*shares, nothing))])
    title = f"{len(queries)} real questions: share whose message is among the first hits, by relevance"
    return title, ["search", *(f"first {most}" for most in _SHOWN), "finds nothing"], rows


def _open_searches(directory: Path) -> dict[str, QuestionSearch]:
    build_mail_index([f"jsonl:{DATA / 'mail.jsonl.gz'}"], directory / "ours")
    index = MailIndex(directory / "ours")
    without_stems = Plain(directory / "words.sqlite")
    with_stems = Plain(directory / "stems.sqlite", "porter unicode61 remove_diacritics 2")
    for each in (without_stems, with_stems):
        each.build(real_messages())
        each.open()

    def search_all(query: Query) -> list[str]:
        return [hit.message_id for hit in index.search(query.inbox, query.keywords)]

    def search_most(query: Query) -> list[str]:
        hits = index.search_partially(query.inbox, query.keywords).hits
        return search_all(query) or [hit.message_id for hit in hits]

    return {
        "FTS5 without stems, all words": lambda query: without_stems.search(query, "relevance"),
        "FTS5 with stems, all words": lambda query: with_stems.search(query, "relevance"),
        "ours, all words": search_all,
        "FTS5 without stems, then any word": lambda query: _search_any(without_stems, query),
        "FTS5 with stems, then any word": lambda query: _search_any(with_stems, query),
        "ours, then most words": search_most,
    }


def _search_any(plain: Plain, query: Query) -> list[str]:
    return plain.search(query, "relevance") or plain.search(query, "relevance", "OR")
