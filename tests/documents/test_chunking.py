"""Chunks: whole sentences, a budget that the model's own tokenizer confirms, and a line that says what they are of."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.documents.build import DocumentBuildOptions, build_index
from gumshoe.documents.chunking import chunk_document, estimate_tokens
from gumshoe.documents.document import Document
from gumshoe.documents.duplicates import ALIKE, Duplicates
from gumshoe.documents.schema import chunk_text
from gumshoe.embeddings.embedder import OFFLINE, SentenceEmbedder
from tests.errors import raises

QUICK = settings(derandomize=True, deadline=None, database=None)
SENTENCES = [f"Sentence {number} tells of something that happened in town." for number in range(40)]


def words(texts: Sequence[str]) -> list[int]:
    """Tokens where each word is one."""
    return [len(text.split()) for text in texts]


def parts(document: Document, budget: int) -> list[str]:
    return [document.text[each.start : each.stop] for each in chunk_document(document, budget, words).chunks]


def test_a_chunk_has_as_many_whole_sentences_as_there_is_room_for() -> None:
    document = Document("d", "Title", " ".join(SENTENCES))
    chunks = parts(document, 40)  # one for the title, and four sentences of nine words
    assert chunks[0] == " ".join(SENTENCES[:4])
    assert " ".join(chunks) == document.text
    assert {len(each.split()) for each in chunks} == {36}


def test_what_lies_between_sentences_counts_and_cuts_none_of_them() -> None:
    between = " " * 14
    document = Document("d", "", between.join(SENTENCES))
    chunks = [document.text[each.start : each.stop] for each in chunk_document(document, 75, estimate_tokens).chunks]
    assert between.join(chunks) == document.text
    assert all(each.startswith("Sentence") and each.endswith("town.") for each in chunks)
    for one, other in pairwise(chunks):
        assert estimate_tokens([one + between + other.split(between)[0]]) > [75]


@pytest.mark.parametrize(
    "text",
    ["Dr. Smith et al. found 5.2 % of it, e.g. in Fig. 3. Then he left.", 'Is it so? "Yes!" he said. It is.'],
)
def test_a_sentence_ends_where_it_ends(text: str) -> None:
    first, second = parts(Document("d", "", text), len(text.split()) - 1)
    assert text == f"{first} {second}"
    assert second in {"Then he left.", "It is."}


def test_the_first_line_has_title_category_and_synonyms_as_far_as_there_is_room() -> None:
    metadata: dict[str, str | list[str]] = {
        "category": "Disease",
        "synonyms": ["grippe", "la grippe", "Flu"],
        "source": "x",
    }
    document = Document("d", "Flu", "It is caused by a virus.", "", metadata)
    assert chunk_document(document, 99, words).context == "Flu | Disease | grippe | la grippe"
    assert chunk_document(document, 16, words).context == "Flu | Disease | grippe"
    long = Document("d", "word " * 50, "Text.", "", {})
    assert len(chunk_document(long, 30, words).context.split()) <= 10
    assert chunk_document(Document("d", "", "Text."), 30, words).context == ""


def test_what_is_longer_than_a_chunk_is_cut_at_lines_or_between_words_or_anywhere() -> None:
    lines = "\n".join(f"item {number} of a list without an end" for number in range(12))
    for each in parts(Document("d", "", lines), 35):
        assert each.startswith("item")
        assert each.endswith("end")
    assert " ".join(parts(Document("d", "", "word " * 100), 30)) == ("word " * 100).strip()
    solid = "x" * 1000
    assert (
        "".join(
            solid[each.start : each.stop]
            for each in chunk_document(Document("d", "", solid), 50, estimate_tokens).chunks
        )
        == solid
    )


@QUICK
@given(st.text(max_size=400), st.text(max_size=60), st.lists(st.text(max_size=20), max_size=4), st.integers(8, 40))
def test_no_text_is_lost_and_no_chunk_is_too_long(text: str, title: str, synonyms: list[str], budget: int) -> None:
    document = Document("d", title, text, "", {"synonyms": synonyms})
    chunked = chunk_document(document, budget, estimate_tokens)
    assert "".join("".join(text[each.start : each.stop].split()) for each in chunked.chunks) == "".join(text.split())
    for each in chunked.chunks:
        whole = chunk_text(chunked.context, text[each.start : each.stop])
        assert estimate_tokens([whole]) == [each.tokens]
        assert each.tokens <= budget or each.stop - each.start == 1


@pytest.fixture(scope="module")
def minilm() -> SentenceEmbedder:
    return SentenceEmbedder(OFFLINE)


@pytest.mark.parametrize("budget", [32, 100, 256])
def test_the_tokenizer_of_the_model_confirms_the_budget(minilm: SentenceEmbedder, budget: int) -> None:
    text = (
        " ".join(SENTENCES) + " Übergrößenträger 12,345.67 " + "antidisestablishmentarianism " * 200 + "\n日本語" * 90
    )
    document = Document("d", "A title of some words", text, "", {"synonyms": ["one", "two"]})
    chunked = chunk_document(document, budget, lambda texts: minilm.count_tokens(texts, "passage"))
    tokenizer = minilm._model.tokenizer
    for each in chunked.chunks:
        ids = tokenizer(chunk_text(chunked.context, text[each.start : each.stop]))["input_ids"]
        assert len(ids) == each.tokens <= budget
    # Two chunks in a row have together more than one has room for, or they would be one.
    room = budget - minilm.count_tokens([f"{chunked.context}\n"], "passage")[0]
    assert len(chunked.chunks) <= 2 * minilm.count_tokens([text], "passage")[0] / room + 1


def test_a_budget_that_the_model_cannot_read_is_refused_before_anything_is_read(
    minilm: SentenceEmbedder, tmp_path: Path
) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "x"}')
    for tokens, bound in ((257, 256), (31, 32)):
        with raises("documents.invalid-chunk-size", tokens, bound):
            build_index(
                [f"jsonl:{tmp_path / 'd.jsonl'}"],
                tmp_path / "i",
                DocumentBuildOptions(OFFLINE, tokens),
                embedder=minilm,
            )
    assert list(tmp_path.glob("i/*")) == []


# Duplicates

LONG = " ".join(f"w{number}" for number in range(100))


def kinds(*chunks: tuple[str, str]) -> list[str | None]:
    """What each chunk, given with its context line, is found to be."""
    kept: dict[int, tuple[str, str]] = {}
    duplicates = Duplicates(kept.__getitem__)
    found: list[str | None] = []
    for number, chunk in enumerate(chunks):
        found.append(duplicates.find(number, *chunk))
        if found[-1] is None:
            kept[number] = chunk
    return found


def test_the_same_words_are_an_exact_duplicate_however_they_are_set() -> None:
    assert kinds(("T", "The same, words"), ("T", "Other"), ("t!", " the SAME\nwords.")) == [None, None, "exact"]


@pytest.mark.parametrize(("changed", "share", "found"), [([50], 95 / 101, "near"), ([20, 70], 92 / 104, None)])
def test_a_near_duplicate_has_nine_tenths_of_its_triples_in_common(
    changed: list[int], share: float, found: str | None
) -> None:
    other = LONG.split()
    for place in changed:  # each is part of three triples of 98
        other[place] = "changed"
    assert (share >= ALIKE) is (found is not None)
    assert kinds(("T", LONG), ("T", " ".join(other))) == [None, found]


def test_what_is_said_of_another_subject_is_no_duplicate() -> None:
    assert kinds(("Gout", LONG), ("Scurvy", LONG), ("Gout", LONG)) == [None, None, "exact"]


def test_texts_without_words_are_compared_as_they_are() -> None:
    assert kinds(("", "***"), ("", "---"), ("", "***")) == [None, None, "exact"]
