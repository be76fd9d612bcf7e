"""BM25, dense retrieval and fusion, against cases computed by hand or by another program."""

import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.documents.document_snippets import SNIPPET_CHARACTERS, make_snippet
from gumshoe.documents.languages import check_language
from gumshoe.documents.lexical import K1, Analyzer, B, Bm25, PostingsBuilder
from tests.errors import raises

QUICK = settings(derandomize=True, deadline=None, database=None)
ENGLISH = Analyzer("en")


# Words


def test_words_are_stemmed_without_case_accents_and_stop_words() -> None:
    assert ENGLISH.split_words("The Diseases of the HEART, naïve & co-exist: 3.5% vitamin_C cafe\u0301") == [
        *["diseas", "heart", "naiv", "co", "exist", "3", "5", "vitamin", "c", "cafe"]
    ]
    assert Analyzer("de").split_words("Die Krankheiten") == ["die", "krankheit"]
    assert Analyzer("zz").split_words("the Running") == ["the", "running"]
    for wrong in ("", "English", "e1", "en-GB", "xx", "eng", "uk"):
        with raises("documents.invalid-language", repr(wrong)):
            check_language(wrong)


def test_the_score_of_a_word_is_lucene_s_bm25() -> None:
    numbers: dict[str, int] = {}
    builder = PostingsBuilder()
    for text in ("gout gout toe", "toe", "heart of gold"):
        builder.add([numbers.setdefault(word, len(numbers)) for word in ENGLISH.split_words(text)])
    scorer = Bm25(builder.finish(len(numbers)), [range(3)])
    # Kamphuis et al. 2020, row "Lucene (accurate)" without its constant factor: "gout" is in one of three texts, twice.
    inverse = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    length, average = 3, (3 + 1 + 2) / 3
    expected = inverse * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * length / average))
    assert scorer.score([[numbers["gout"]]]) == pytest.approx([expected, 0, 0])
    twice = scorer.score([[numbers["gout"]], [numbers["toe"]], [numbers["gout"]]])
    assert twice[0] == pytest.approx(2 * expected + scorer.score([[numbers["toe"]]])[0])
    assert Bm25(PostingsBuilder().finish(0), []).score([]).tolist() == []


def test_scores_are_those_of_another_program() -> None:
    """Compare with bm25s, whose variant `lucene` is that of Kamphuis et al."""
    import bm25s

    rng = random.Random(1)
    texts = [[rng.choice("abcdefgh") for _ in range(rng.randint(1, 40))] for _ in range(60)]
    words = sorted({word for text in texts for word in text})
    builder = PostingsBuilder()
    for text in texts:
        builder.add([words.index(word) for word in text])
    ours = Bm25(builder.finish(len(words)), [range(len(texts))])
    other = bm25s.BM25(k1=K1, b=B, method="lucene")
    other.index(texts, show_progress=False)
    for query in (["a"], ["a", "c", "h"], ["b", "b", "g"]):
        assert ours.score([[words.index(word)] for word in query]) == pytest.approx(other.get_scores(query), rel=1e-5)


def test_the_score_of_a_word_is_that_of_the_collections_alone() -> None:
    """Give two collections the same words: the score in both together is that of one collection with all texts."""
    texts = [["gout", "gout", "toe"], ["toe"], ["gold", "toe"], ["gout"]]
    together, apart = PostingsBuilder(), PostingsBuilder()
    words, ours, others = ["gout", "toe", "gold"], {"gout": 0, "toe": 1}, {"gold": 2, "toe": 3, "gout": 4}
    for place, text in enumerate(texts):
        together.add([words.index(word) for word in text])
        apart.add([(ours if place < 2 else others)[word] for word in text])
    whole, parts = Bm25(together.finish(3), [range(4)]), apart.finish(5)
    for place, word in enumerate(words):
        both = Bm25(parts, [range(2), range(2, 4)]).score([[ours.get(word), others[word]]])
        assert both.tolist() == whole.score([[place]]).tolist()
    alone = PostingsBuilder()
    for text in texts[2:]:
        alone.add([words.index(word) for word in text])
    expected = Bm25(alone.finish(3), [range(2)]).score([[0], [1]])
    assert Bm25(parts, [range(2, 4)]).score([[others["gout"]], [others["toe"]]]).tolist() == expected.tolist()


def test_stemming_is_thread_safe() -> None:
    words = [
        f"{stem}{ending}" for stem in ("relat", "operat", "nation") for ending in ("ion", "ional", "ing", "ed", "s")
    ] * 40
    expected = [Analyzer("en").split_words(word) for word in words]
    analyzer = Analyzer("en")
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(analyzer.split_words, words)) == expected


# Snippets


def test_a_snippet_contains_most_of_the_words() -> None:
    text = "filler " * 60 + "the uric acid\nof gout hurts " + "other " * 80
    shown = make_snippet(text, frozenset(ENGLISH.split_words("acids in gout")), ENGLISH)
    assert "the uric acid of gout hurts" in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")
    assert make_snippet("A short\n text", frozenset({"x"}), ENGLISH) == "A short text"
    assert make_snippet(text, frozenset(), ENGLISH).startswith("filler filler")
    assert make_snippet(text, frozenset({"absent"}), ENGLISH).startswith("filler filler")


@QUICK
@given(st.text(max_size=900), st.text(max_size=30), st.sampled_from([80, SNIPPET_CHARACTERS, 500]))
def test_a_snippet_is_one_short_line(text: str, query: str, limit: int) -> None:
    shown = make_snippet(text, frozenset(ENGLISH.split_words(query)), ENGLISH, limit)
    assert len(shown) <= limit + 4
    assert "\n" not in shown
    assert shown.removeprefix("… ").removesuffix(" …").strip() in " ".join(text.split())
