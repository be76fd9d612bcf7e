"""Chunking: whole sentences, token budgets, context lines and duplicates."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.chunking import chunk_document, estimate_tokens
from gumshoe.documents.document import Document
from gumshoe.documents.document_writer import MIN_SIMILARITY, DuplicateFinder
from gumshoe.documents.schema import chunk_text
from gumshoe.embeddings.embedder import OFFLINE_MODEL, SentenceEmbedder
from tests.errors import raises

QUICK = settings(derandomize=True, deadline=None, database=None)
SENTENCES = [f"Sentence {number} tells of something that happened in town." for number in range(40)]


def words(texts: Sequence[str]) -> list[int]:
    """Count each word as one token."""
    return [len(text.split()) for text in texts]


def parts(document: Document, budget: int) -> list[str]:
    return [document.text[each.start : each.stop] for each in chunk_document(document, budget, words).chunks]


def test_a_chunk_has_as_many_whole_sentences_as_fit() -> None:
    document = Document("d", "Title", " ".join(SENTENCES))
    chunks = parts(document, 40)  # one for the title, and four sentences of nine words
    assert chunks[0] == " ".join(SENTENCES[:4])
    assert " ".join(chunks) == document.text
    assert {len(each.split()) for each in chunks} == {36}


def test_whitespace_between_sentences_counts() -> None:
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
def test_abbreviations_do_not_end_a_sentence(text: str) -> None:
    first, second = parts(Document("d", "", text), len(text.split()) - 1)
    assert text == f"{first} {second}"
    assert second in {"Then he left.", "It is."}


def test_the_context_line_is_limited() -> None:
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


def test_a_long_sentence_is_split_at_lines_or_words_or_anywhere() -> None:
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
def test_chunks_contain_all_text_within_the_budget(text: str, title: str, synonyms: list[str], budget: int) -> None:
    document = Document("d", title, text, "", {"synonyms": synonyms})
    chunked = chunk_document(document, budget, estimate_tokens)
    assert "".join("".join(text[each.start : each.stop].split()) for each in chunked.chunks) == "".join(text.split())
    for each in chunked.chunks:
        whole = chunk_text(chunked.context, text[each.start : each.stop])
        assert estimate_tokens([whole]) == [each.tokens]
        assert each.tokens <= budget or each.stop - each.start == 1


@pytest.fixture(scope="module")
def minilm() -> SentenceEmbedder:
    return SentenceEmbedder(OFFLINE_MODEL)


@pytest.mark.parametrize("budget", [32, 100, 256])
def test_chunks_fit_the_budget_of_a_real_tokenizer(minilm: SentenceEmbedder, budget: int) -> None:
    text = (
        " ".join(SENTENCES) + " Übergrößenträger 12,345.67 " + "antidisestablishmentarianism " * 200 + "\n日本語" * 90
    )
    document = Document("d", "A title of some words", text, "", {"synonyms": ["one", "two"]})
    chunked = chunk_document(document, budget, lambda texts: minilm.count_tokens(texts, "passage"))
    tokenizer = minilm._model.tokenizer
    for each in chunked.chunks:
        ids = tokenizer(chunk_text(chunked.context, text[each.start : each.stop]))["input_ids"]
        assert len(ids) == each.tokens <= budget
    # Two consecutive chunks together exceed the budget; otherwise they would be one.
    room = budget - minilm.count_tokens([f"{chunked.context}\n"], "passage")[0]
    assert len(chunked.chunks) <= 2 * minilm.count_tokens([text], "passage")[0] / room + 1


def test_an_invalid_budget_is_rejected_before_reading(minilm: SentenceEmbedder, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "x"}')
    for tokens, bound in ((257, 256), (31, 32)):
        with raises("documents.invalid-chunk-size", tokens, bound):
            build_document_index(
                [f"jsonl:{tmp_path / 'd.jsonl'}"],
                tmp_path / "i",
                DocumentBuildOptions(OFFLINE_MODEL, tokens),
                embedder=minilm,
            )
    assert list(tmp_path.glob("i/*")) == []


# Duplicates

LONG = " ".join(f"w{number}" for number in range(100))


def kinds(*chunks: tuple[str, str]) -> list[str | None]:
    """Return the kind of duplicate of each chunk, given with its context line."""
    chunks_by_number: dict[int, tuple[str, str]] = {}
    duplicates = DuplicateFinder(chunks_by_number.__getitem__)
    found: list[str | None] = []
    for number, chunk in enumerate(chunks):
        found.append(duplicates.find(number, *chunk))
        if found[-1] is None:
            chunks_by_number[number] = chunk
    return found


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
