"""Documents in the tables of an index: context lines and duplicates."""

import pytest

from gumshoe.documents.document import Document
from gumshoe.documents.document_writer import MIN_SIMILARITY, DuplicateFinder


def test_the_context_line_has_title_category_and_synonyms() -> None:
    metadata: dict[str, str | list[str]] = {
        "synonyms": ["grippe", "la grippe", "Flu"],
        "category": "Disease",
        "source": "x",
    }
    document = Document("d", "Flu", "It is caused by a virus.", "", metadata)
    assert document.list_context() == ["Flu", "Disease", "grippe", "la grippe", "Flu"]
    assert Document("d", "", "Text.").list_context() == [""]


LONG = " ".join(f"w{number}" for number in range(100))


def kinds(*chunks: tuple[str, str]) -> list[str | None]:
    """Return the kind of duplicate of each chunk, given with its context line."""
    chunks_by_number: dict[int, tuple[str, str]] = {}
    duplicates = DuplicateFinder(chunks_by_number.__getitem__)
    found: list[str | None] = []
    for number, chunk in enumerate(chunks):
        repeat = duplicates.find(number, *chunk)
        found.append(repeat and repeat.kind)
        if repeat is None:
            chunks_by_number[number] = chunk
    return found


def test_the_chunk_that_is_repeated_is_named() -> None:
    chunks = [("T", "one"), ("T", LONG), ("T", "One!"), ("T", LONG.replace("w50", "changed"))]
    duplicates = DuplicateFinder(chunks.__getitem__)
    found = [duplicates.find(number, *chunk) for number, chunk in enumerate(chunks)]
    assert found == [None, None, ("exact", 0), ("near", 1)]


def test_case_and_punctuation_do_not_matter_for_duplicates() -> None:
    assert kinds(("T", "The same, words"), ("T", "Other"), ("t!", " the SAME\nwords.")) == [None, None, "exact"]


@pytest.mark.parametrize(("changed", "share", "found"), [([50], 95 / 101, "near"), ([20, 70], 92 / 104, None)])
def test_near_duplicates_share_90_percent_of_word_triples(changed: list[int], share: float, found: str | None) -> None:
    other = LONG.split()
    for place in changed:  # each is part of three triples of 98
        other[place] = "changed"
    assert (share >= MIN_SIMILARITY) is (found is not None)
    assert kinds(("T", LONG), ("T", " ".join(other))) == [None, found]


def test_the_same_text_about_another_subject_is_not_a_duplicate() -> None:
    assert kinds(("Gout", LONG), ("Scurvy", LONG), ("Gout", LONG)) == [None, None, "exact"]


def test_texts_without_words_are_compared_literally() -> None:
    assert kinds(("", "***"), ("", "---"), ("", "***")) == [None, None, "exact"]


def test_of_many_similar_chunks_only_the_first_ones_are_read() -> None:
    read: list[int] = []
    chunks = [(number, "", LONG.replace("w20 ", f"a{number} ").replace("w70 ", f"b{number} ")) for number in range(150)]

    def read_chunk(number: int) -> tuple[str, str]:
        read.append(number)
        return chunks[number][1:]

    duplicates = DuplicateFinder(read_chunk)
    assert [duplicates.find(*each) for each in chunks] == [None] * len(chunks)
    assert 0 < len(read) <= 60
    assert duplicates.find(150, "", chunks[3][2].replace("w50 ", "other ")) == ("near", 3)
