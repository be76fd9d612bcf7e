"""Turn the arguments of searches into terms, for each inbox by itself."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from gumshoe.mail.compounds import join_compounds
from gumshoe.mail.inbox_view import Keyword
from gumshoe.mail.message import clean
from gumshoe.mail.search_arguments import MAX_KEYWORD_LENGTH, MAX_WORDS, MailSearchError, check_person
from gumshoe.mail.terms import PersonRole, address_term, name_terms
from gumshoe.mail.words import MailAnalyzer

_INBOXES_CACHED = 256
_TOKENS_CACHED = 2_000  # for each of these inboxes: about 200 bytes each


class QueryTerms:
    """Analyze keywords and people of searches. Thread-safe.

    Each inbox has an analyzer of its own. With a common one, a word would take less time if somebody else had searched
    for it, or had found it.
    """

    def __init__(self) -> None:
        self._analyzers = lru_cache(_INBOXES_CACHED)(lambda _: MailAnalyzer(cached=_TOKENS_CACHED))

    def analyzer(self, inbox: str) -> MailAnalyzer:
        """Return the analyzer of an inbox."""
        return self._analyzers(inbox)

    def read_keywords(self, inbox: str, keywords: Iterable[str]) -> tuple[Keyword, ...]:
        """Return the terms of each keyword. No character of it is an operator.

        Raises:
            MailSearchError: if a keyword is too long or has no word.
        """
        analyzer = self.analyzer(inbox)
        return tuple(_read_keyword(analyzer, each) for each in keywords)

    def read_people(self, inbox: str, sender: str | None, recipient: str | None) -> tuple[int, ...]:
        """Return the terms of a sender and of a recipient: whole addresses, or names.

        Raises:
            MailSearchError: if one is neither.
        """
        people: tuple[tuple[PersonRole, str, str | None], ...] = (
            ("from", "sender", sender),
            ("to", "recipient", recipient),
        )
        return tuple(
            term
            for role, name, person in people
            if person is not None
            for term in self._read_person(inbox, role, check_person(name, person))
        )

    def _read_person(self, inbox: str, role: PersonRole, person: str) -> Iterable[int]:
        if "@" in person:
            return (address_term(role, person),)
        # The index has both forms of O'Neil, but of ONeil, and of the address oneil@example.com, only that.
        words = join_compounds(person, lambda each: each.has_apostrophe)
        return name_terms(role, self.analyzer(inbox).analyze_query(words).terms)


def _read_keyword(analyzer: MailAnalyzer, keyword: str) -> Keyword:
    words = clean(keyword)
    if len(words) > MAX_KEYWORD_LENGTH:
        raise MailSearchError(
            "mail.keyword-too-long", f"a keyword has {len(words)} characters; use at most {MAX_KEYWORD_LENGTH}"
        )
    phrases = analyzer.list_alternatives(words)
    if not phrases[0]:
        raise MailSearchError(
            "mail.keyword-without-words", f"keyword {words!r} has no letter or digit to search for; use words"
        )
    return tuple(tuple(zip(each.terms, each.offsets, strict=True)) for each in phrases)


def check_words(keywords: Sequence[Keyword], filters: Sequence[int]) -> None:
    """Raise MailSearchError if a search has too many words."""
    count = sum(max(map(len, each)) for each in keywords) + len(filters)
    if count > MAX_WORDS:
        raise MailSearchError(
            "mail.too-many-words",
            f"the search has {count} words in all; use at most {MAX_WORDS}, the most specific ones",
        )
