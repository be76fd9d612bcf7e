"""A search has a bound on its work: on its words, and on how often they occur in its inbox."""

from itertools import product
from typing import Any, get_args

import pytest

from gumshoe.mail import inbox_view
from gumshoe.mail.index import MailIndex
from gumshoe.mail.postings_reader import InboxPostings
from gumshoe.mail.search_arguments import MAX_KEYWORD_LENGTH, MAX_KEYWORDS, MAX_WORDS, Order
from tests.errors import raises
from tests.mail.mailbox import make_index, record

BOB, EVE = "bob@example.com", "eve@example.com"
WORD = "a"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    """Index messages that consist of one word, as often as possible, and others of somebody else."""
    mine = [record(number, body=f"{WORD} " * 200, subject=f"{number}") for number in range(50)]
    others = [record(number, body=f"{WORD} " * 200, subject=f"{number}", to=[EVE]) for number in range(100, 400)]
    return make_index(tmp_path_factory.mktemp("mail"), [*mine, *others])


def count_read(
    index: MailIndex, monkeypatch: pytest.MonkeyPatch, *keywords: str, search: str = "search", **options: Any
) -> int:
    """Return how many postings and positions a search reads."""
    read = 0

    def count(name: str) -> None:
        method = getattr(InboxPostings, name)

        def counting(*arguments: Any) -> Any:
            nonlocal read
            found = method(*arguments)
            read += len(found[0])
            return found

        patch.setattr(InboxPostings, name, counting)

    with monkeypatch.context() as patch:
        count("find")
        count("_read_positions")
        getattr(MailIndex(index.directory), search)(BOB, list(keywords), **options)
    return read


LONGEST = f"{WORD} " * (MAX_KEYWORD_LENGTH // 2)


@pytest.mark.parametrize("keywords", [[LONGEST], [WORD] * MAX_KEYWORDS, [f"{WORD} " * 3] * MAX_KEYWORDS])
@pytest.mark.parametrize("order", get_args(Order))
def test_the_dearest_searches_read_a_bounded_number_of_postings(
    index: MailIndex, monkeypatch: pytest.MonkeyPatch, keywords: list[str], order: Order
) -> None:
    """Bound by the words of the search and those of the inbox: a phrase looks at each of its words a few times."""
    words = 50 * 201
    assert 0 < count_read(index, monkeypatch, *keywords, order=order) <= 3 * MAX_WORDS * words


def test_a_partial_search_reads_its_filters_once_for_all_keywords(
    index: MailIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts messages and then ranks them, and reads the filters for each of the two."""
    words, people = [WORD] * MAX_KEYWORDS, {"sender": record(1)["from"]}
    without, filtered = (
        count_read(index, monkeypatch, *words, search="search_partially", **each) for each in ({}, people)
    )
    assert filtered - without == 2 * 50


@pytest.mark.parametrize(
    ("keywords", "people", "count"),
    [
        ([LONGEST] * MAX_KEYWORDS, {}, MAX_KEYWORDS * 100),
        ([LONGEST, WORD], {}, MAX_WORDS + 1),
        ([f"{WORD} " * 50], {"sender": f"{WORD} " * 51}, MAX_WORDS + 1),
        ([WORD], {"recipient": f"{WORD} " * 100}, MAX_WORDS + 1),
        (["会" * 102], {}, 101),
    ],
)
def test_searches_with_too_many_words_are_rejected(
    index: MailIndex, keywords: list[str], people: dict[str, Any], count: int
) -> None:
    for search in (index.search, index.search_partially):
        with raises("mail.too-many-words", count, MAX_WORDS):
            search(BOB, keywords, **people)


def test_a_search_by_meaning_has_a_limit_on_the_words_of_people(index: MailIndex) -> None:
    people: dict[str, Any] = {"sender": f"{WORD} " * 51, "recipient": f"{WORD} " * 50}
    with raises("mail.too-many-words", 101, MAX_WORDS):
        index.search_by_meaning(BOB, "word", **people)
    assert index.search_by_meaning(BOB, f"{WORD} " * 1000)


def test_searches_that_read_too_much_are_rejected(index: MailIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the mail of the inbox counts, and only words in phrases have positions that are read."""
    postings, occurrences = 50, 50 * 200
    allowed = {(WORD,): postings, (WORD, WORD): 2 * postings, (f"{WORD} {WORD}",): 2 * (postings + occurrences)}
    for (keywords, size), name in product(allowed.items(), ("search", "search_partially")):
        monkeypatch.setattr(inbox_view, "MAX_POSTINGS", size)
        assert getattr(MailIndex(index.directory), name)(BOB, list(keywords))
        monkeypatch.setattr(inbox_view, "MAX_POSTINGS", size - 1)
        with raises("mail.search-too-broad", f"{size:,}"):
            getattr(MailIndex(index.directory), name)(BOB, list(keywords))
    monkeypatch.setattr(inbox_view, "MAX_POSTINGS", postings - 1)
    with raises("mail.search-too-broad", postings):
        MailIndex(index.directory).search_by_meaning(BOB, WORD)
    assert MailIndex(index.directory).search("nobody@example.com", [WORD]) == []
