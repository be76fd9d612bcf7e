"""Postings of one inbox: what is found in them equals what a loop over all words finds."""

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gumshoe.mail.postings import PostingsWriter
from gumshoe.mail.postings_reader import InboxPostings, PostingsReader, intersect

Text = tuple[list[int], list[int]]
"""Terms of the words of a subject and of a body."""

# Frequent and rare words, so that short lists meet long ones.
words = st.sampled_from([1] * 12 + [2] * 12 + [3, 4, 5])
texts = st.lists(st.tuples(st.lists(words, max_size=2), st.lists(words, max_size=8)), min_size=1, max_size=60)
phrases = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def number_words(text: Text) -> list[tuple[int, int]]:
    """Return the number of each word, with a gap after the subject, and its term."""
    subject, body = text
    return [*enumerate(subject), *enumerate(body, len(subject) + 1)]


def read_postings(mail: Sequence[Text]) -> InboxPostings:
    """Write postings of messages with these texts, numbered and dated from 1, and open them."""
    writer = PostingsWriter()
    for number, text in enumerate(mail, 1):
        places = number_words(text)
        pair = writer.add_pair("ann@example.com", number, len(places), len(text[0]))
        writer.add_time(pair, number)
        distinct = np.array(sorted({term for _, term in places}), np.uint64)
        numbers = dict(zip(distinct.tolist(), writer.number_terms(distinct).tolist(), strict=True))
        terms = np.array([numbers[term] for _, term in places], np.uint32)
        writer.add_part(pair, writer.add_text(terms, np.array([place for place, _ in places], np.uint16)))
    with TemporaryDirectory() as directory:
        path = Path(directory) / "postings.bin"
        return PostingsReader(path, writer.write(path)).open_inbox(0)


def find_phrase(mail: Sequence[Text], phrase: list[tuple[int, int]]) -> dict[int, int]:
    """Return how often each message contains a phrase, twice as often if it is in the subject."""
    found: Counter[int] = Counter()
    for ordinal, text in enumerate(mail):
        places = set(number_words(text))
        for start, _ in places:
            if all((start + offset, term) in places for term, offset in phrase):
                found[ordinal] += 2 if start < len(text[0]) else 1
    return found


@given(mail=texts, words=phrases, gap=st.booleans(), shift=st.integers(0, 2), limit=st.integers(0, 60))
@example(  # only the first message has the first two words together, and it has no third
    mail=[([], [4, 5])] + [([], [4, 2, 1, 5])] * 10 + [([], [1])] * 20, words=[4, 5, 1], gap=False, shift=0, limit=0
)
@example(mail=[([1, 2], [])], words=[1, 2], gap=False, shift=1, limit=0)
def test_phrases_are_found_as_in_the_text(
    mail: list[Text], words: list[int], gap: bool, shift: int, limit: int
) -> None:
    postings = read_postings(mail)
    phrase = [(term, place + (gap and place == len(words) - 1 > 0)) for place, term in enumerate(words)]
    expected = find_phrase(mail, phrase)
    found = postings.find_phrase([(term, offset + shift) for term, offset in phrase])  # only distances count
    assert dict(zip(found.ordinals.tolist(), found.weights.tolist(), strict=True)) == expected
    some = reduce(intersect, (postings.find(word).ordinals for word in words))[-limit:]
    within = postings.find_phrase(phrase, some)
    assert within.ordinals.tolist() == [each for each in some.tolist() if each in expected]
    assert found.ordinals.tolist() == sorted(expected)


@given(mail=texts, terms=st.sets(st.integers(1, 6)), chosen=st.sets(st.integers(0, 59)))
def test_places_are_found_as_in_the_text(mail: list[Text], terms: set[int], chosen: set[int]) -> None:
    ordinals = [each for each in chosen if each < len(mail)]
    expected = {each: [place for place in number_words(mail[each]) if place[1] in terms] for each in ordinals}
    assert read_postings(mail).find_occurrences(terms, ordinals) == expected


@given(mail=texts, terms=st.lists(st.integers(1, 7), unique=True))
def test_messages_of_several_terms_are_those_of_each(mail: list[Text], terms: list[int]) -> None:
    postings = read_postings(mail)
    found = {term: ordinals.tolist() for term, ordinals in postings.find_each(terms)}
    assert found == {term: each for term in terms if (each := postings.find(term).ordinals.tolist())}


@given(one=st.sets(st.integers(0, 300)), other=st.sets(st.integers(0, 300), max_size=8))
def test_intersections_are_those_of_sets(one: set[int], other: set[int]) -> None:
    arrays = [np.array(sorted(each), np.uint16) for each in (one, other)]
    assert intersect(*arrays).tolist() == sorted(one & other)
