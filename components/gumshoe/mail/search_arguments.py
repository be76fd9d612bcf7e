"""Validation of the arguments of mail searches. Each error says what to write instead."""

import re
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from gumshoe.embeddings.search_options import Fusion
from gumshoe.errors import UsageError
from gumshoe.mail.message import clean_line, normalize_address, to_utc

MAX_LIMIT = 10
MAX_KEYWORDS = 32
MAX_KEYWORD_LENGTH = 200  # characters
MAX_WORDS = 100
"""Maximum number of words of all keywords and people of a search. Each takes time, in phrases most of all."""
MEANING_WEIGHT = 0.2
"""Weight of vectors in a search by meaning, less than for documents: questions about mail use its names and words."""
MAX_QUERY_LENGTH = 2_000  # characters; the rest is ignored
Order = Literal["relevance", "date"]


class MailSearchError(UsageError):
    """A search argument is invalid. Models read these messages, so their wording must not change."""


def check_choices(limit: Any, order: Any, snippet_words: Any) -> None:
    """Raise MailSearchError if the number of results, the order or the length of snippets is invalid."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
        raise MailSearchError("mail.invalid-limit", f"limit is {limit!r}; write a whole number from 1 to {MAX_LIMIT}")
    if order not in get_args(Order):
        raise MailSearchError("mail.invalid-order", f"order is {order!r}; write 'relevance' or 'date'")
    if not isinstance(snippet_words, int) or isinstance(snippet_words, bool) or snippet_words < 1:
        raise MailSearchError(
            "mail.invalid-snippet-words", f"snippet_words is {snippet_words!r}; write a whole number from 1"
        )


def check_query(query: Any) -> str:
    """Return a query in words as one line, without what is too long."""
    if not isinstance(query, str):
        raise MailSearchError("mail.invalid-query", f"query is {query!r}; write a text")
    return clean_line(query[:MAX_QUERY_LENGTH])


def check_fusion(dense_weight: Any, fusion: Any) -> None:
    """Raise MailSearchError if the weight of vectors or the way to fuse both rankings is invalid."""
    if not isinstance(dense_weight, int | float) or not 0 <= dense_weight <= 1:
        raise MailSearchError("mail.invalid-fusion", f"dense_weight is {dense_weight!r}; write a number from 0 to 1")
    if fusion not in get_args(Fusion):
        raise MailSearchError("mail.invalid-fusion", f"fusion is {fusion!r}; write 'score' or 'rank'")


def check_keywords(keywords: Any) -> list[str]:
    """Return the keywords if they are a list of texts of allowed length."""
    if not isinstance(keywords, list | tuple) or not all(isinstance(keyword, str) for keyword in keywords):
        raise MailSearchError(
            "mail.invalid-keywords", 'keywords is not a list of texts; write it as ["first", "second words"]'
        )
    if not 1 <= len(keywords) <= MAX_KEYWORDS:
        raise MailSearchError("mail.keyword-count", f"there are {len(keywords)} keywords; write 1 to {MAX_KEYWORDS}")
    return list(keywords)


def check_address(name: str, text: Any) -> str:
    """Return the normal form of a complete address."""
    if not isinstance(text, str) or not re.fullmatch(r"\S+@\S+", address := normalize_address(text)):
        raise MailSearchError(
            "mail.invalid-address", f"{name} is {text!r}; write a whole address, such as ann@example.com"
        )
    return address


def check_person(name: str, text: Any) -> str:
    """Return the normal form of an address or a name."""
    if not isinstance(text, str) or not any(map(str.isalnum, text)) or len(text) > MAX_KEYWORD_LENGTH:
        raise MailSearchError(
            "mail.invalid-person", f"{name} is {text!r}; write an address, such as ann@example.com, or a name"
        )
    return check_address(name, text) if "@" in text else clean_line(text)


def check_period(after: Any, before: Any) -> tuple[int | None, int | None]:
    """Return the start and end of a period in seconds since 1970. None means open."""
    start, end = _parse_moment("sent_after", after), _parse_moment("sent_before", before)
    if start is not None and end is not None and start >= end:
        raise MailSearchError("mail.empty-period", f"sent_after {after} is not earlier than sent_before {before}")
    return start, end


def _parse_moment(name: str, value: Any) -> int | None:
    """Return seconds since 1970 of a day, a time, or the ISO 8601 text of either. The default time zone is UTC."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
        return to_utc(moment)[0]
    except (ValueError, AttributeError, OverflowError):
        raise MailSearchError(
            "mail.invalid-date", f"{name} is {value!r}, which is no date; write it as YYYY-MM-DD"
        ) from None
