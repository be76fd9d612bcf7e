"""Chunking: whole sentences, token budgets and context lines."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.embeddings.chunking import add_context, estimate_tokens, join_context, make_token_counter, split_text
from gumshoe.embeddings.embedder import OFFLINE_MODEL, SentenceEmbedder

QUICK = settings(derandomize=True, deadline=None, database=None)
SENTENCES = [f"Sentence {number} tells of something that happened in town." for number in range(40)]


def words(texts: Sequence[str]) -> list[int]:
    """Count each word as one token."""
    return [len(text.split()) for text in texts]


def parts(text: str, budget: int, title: str = "") -> list[str]:
    return [text[each.start : each.stop] for each in split_text(text, [title], budget, words).chunks]


def test_a_chunk_has_as_many_whole_sentences_as_fit() -> None:
    text = " ".join(SENTENCES)
    chunks = parts(text, 40, "Title")  # one for the title, and four sentences of nine words
    assert chunks[0] == " ".join(SENTENCES[:4])
    assert " ".join(chunks) == text
    assert {len(each.split()) for each in chunks} == {36}


def test_whitespace_between_sentences_counts() -> None:
    between = " " * 14
    text = between.join(SENTENCES)
    chunks = [text[each.start : each.stop] for each in split_text(text, [], 75, estimate_tokens).chunks]
    assert between.join(chunks) == text
    assert all(each.startswith("Sentence") and each.endswith("town.") for each in chunks)
    for one, other in pairwise(chunks):
        assert estimate_tokens([one + between + other.split(between)[0]]) > [75]


@pytest.mark.parametrize(
    "text",
    ["Dr. Smith et al. found 5.2 % of it, e.g. in Fig. 3. Then he left.", 'Is it so? "Yes!" he said. It is.'],
)
def test_abbreviations_do_not_end_a_sentence(text: str) -> None:
    first, second = parts(text, len(text.split()) - 1)
    assert text == f"{first} {second}"
    assert second in {"Then he left.", "It is."}


def test_the_context_line_is_limited() -> None:
    parts = ["Flu", "Disease", "grippe", "la grippe", "Flu"]
    assert split_text("It is caused by a virus.", parts, 99, words).context == "Flu | Disease | grippe | la grippe"
    assert split_text("It is caused by a virus.", parts, 16, words).context == "Flu | Disease | grippe"
    assert len(split_text("Text.", ["word " * 50], 30, words).context.split()) <= 10
    assert split_text("Text.", ["", ""], 30, words).context == ""


@QUICK
@given(st.lists(st.text(max_size=30), max_size=5), st.integers(8, 40))
def test_a_short_context_line_is_the_beginning_of_the_whole(given_parts: list[str], budget: int) -> None:
    context = split_text("Text.", given_parts, budget, estimate_tokens).context
    assert join_context(given_parts).startswith(context)


def test_a_long_sentence_is_split_at_lines_or_words_or_anywhere() -> None:
    lines = "\n".join(f"item {number} of a list without an end" for number in range(12))
    for each in parts(lines, 35):
        assert each.startswith("item")
        assert each.endswith("end")
    assert " ".join(parts("word " * 100, 30)) == ("word " * 100).strip()
    solid = "x" * 1000
    assert "".join(solid[each.start : each.stop] for each in split_text(solid, [], 50, estimate_tokens).chunks) == solid


@QUICK
@given(st.text(max_size=400), st.text(max_size=60), st.lists(st.text(max_size=20), max_size=4), st.integers(8, 40))
def test_chunks_contain_all_text_within_the_budget(text: str, title: str, synonyms: list[str], budget: int) -> None:
    chunked = split_text(text, [title, *synonyms], budget, estimate_tokens)
    assert "".join("".join(text[each.start : each.stop].split()) for each in chunked.chunks) == "".join(text.split())
    for each in chunked.chunks:
        whole = add_context(chunked.context, text[each.start : each.stop])
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
    chunked = split_text(text, ["A title of some words", "one", "two"], budget, make_token_counter(minilm))
    tokenizer = minilm._model.tokenizer
    for each in chunked.chunks:
        ids = tokenizer(add_context(chunked.context, text[each.start : each.stop]))["input_ids"]
        assert len(ids) == each.tokens <= budget
    # Two consecutive chunks together exceed the budget; otherwise they would be one.
    room = budget - minilm.count_tokens([f"{chunked.context}\n"], "passage")[0]
    assert len(chunked.chunks) <= 2 * minilm.count_tokens([text], "passage")[0] / room + 1
