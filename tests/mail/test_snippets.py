"""The part of a text that is shown for the words of a query."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.mail.snippets import SNIPPET_WORDS, find_places, make_snippet
from gumshoe.mail.words import MailAnalyzer

ANALYZER = MailAnalyzer()
(GAS,), (OIL,) = (ANALYZER.analyze_query(each).terms for each in ("gas", "oil"))
FILLER = " ".join(["word"] * 100)


def test_a_snippet_is_of_the_first_text_with_a_place() -> None:
    texts = ["one two", f"{FILLER} gas", "gas three"]
    assert make_snippet(texts, []) == "one two"
    assert make_snippet(texts, [(3 + 100, GAS), (3 + 102, GAS)]).endswith("word gas")
    assert make_snippet(texts, [(3 + 102, GAS)]) == "gas three"


def test_a_snippet_has_the_most_different_words_of_the_query() -> None:
    text = f"gas gas gas {FILLER} Gas, oil. {FILLER} oil"
    assert "Gas, oil." in make_snippet([text], find_places(ANALYZER, text, {GAS, OIL}))


def test_a_match_late_in_a_long_text_is_shown() -> None:
    text = f"{FILLER}\n" * 400 + "gas" + " and more" * 30
    assert " gas and more " in make_snippet([text], find_places(ANALYZER, text, {GAS}))


@pytest.mark.parametrize("long", ["x" * 100_000, "- " * 50_000, "=" * 100_000])
def test_a_snippet_is_short_whatever_is_between_the_words(long: str) -> None:
    for text in (long, f"{long} gas", f"gas {long}", f"one {long} two gas three {long} four"):
        places = find_places(ANALYZER, text, {GAS})
        snippet = make_snippet([text], places)
        assert len(snippet) <= 1_004
        assert ("gas" in snippet) == bool(places)


@given(st.lists(st.sampled_from(["gas", "oil", "word", "a,b", "Zürich", "1,250,000", "東京"]), max_size=80), st.data())
def test_a_snippet_is_a_short_part_of_the_text(words: list[str], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([" ", "\n", " - "])).join(words)
    size = data.draw(st.sampled_from([1, SNIPPET_WORDS, 60]))
    places = find_places(ANALYZER, text, {GAS, OIL})
    snippet = make_snippet([text], places, size)
    shown = snippet.removeprefix("… ").removesuffix(" …")
    assert shown in " ".join(text.split())
    assert len(ANALYZER.analyze(shown).positions) <= 2 * size
    assert bool(places) == bool(find_places(ANALYZER, shown, {GAS, OIL}))
