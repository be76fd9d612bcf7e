"""The grammar of templates, the templates themselves, and random choices."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.synthesis.grammar import expand, expand_sentence, load_text
from gumshoe.synthesis.rng import Rng

TEXTS = ["bulletins", "chatter", "facts", "filler", "letters", "matters", "seasons"]
# Slots that the generator fills in addition to the word lists. `text/*.toml` may use no others.
FILLED = {
    *("friend", "colleague", "other", "office", "company", "floor", "weekday", "month", "day", "me", "it", "name"),
    *("title", "firm", "phone", "address", "noun", "old", "value", "reason", "decider", "request", "then", "person"),
    *("short", "change"),
}


def templates(described: Any) -> Iterator[str]:
    """Yield every text in a file."""
    if isinstance(described, str):
        yield described
    elif isinstance(described, dict):
        for each in described.values():
            yield from templates(each)
    elif isinstance(described, list):
        for each in described:
            yield from templates(each)


def expansions(template: str) -> set[str]:
    values = {"tool": "awl", "goods": "pens"}
    return {expand(template, Rng(seed), values) for seed in range(200)}


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        ("plain", {"plain"}),
        ("[one|two]", {"one", "two"}),
        ("a [very |]good {goods}", {"a very good pens", "a good pens"}),
        ("[[a|b] c|d]", {"a c", "b c", "d"}),
        ("a(n) {tool}, a(n) [new|old] {tool}", {"an awl, a new awl", "an awl, an old awl"}),
        ("A(n) hour, a(n) unit, a(n) 8, a(n) 18th, a(n) 80", {"An hour, a unit, an 8, an 18th, an 80"}),
        ("[Well|] , yes", {"Well, yes", ", yes"}),
        ("{Tool}: {Goods}", {"Awl: Pens"}),
        ("either|or", {"either|or"}),
    ],
)
def test_a_template_gives_each_of_its_expansions(template: str, texts: set[str]) -> None:
    assert expansions(template) == texts


def test_a_sentence_starts_with_a_capital() -> None:
    assert expand_sentence("{tool} first", Rng(1), {"tool": "awl"}) == "Awl first"


@pytest.mark.parametrize("template", ["[one|two", "{tool", "{a b}", "[a|[b]"])
def test_unbalanced_brackets_are_an_error(template: str) -> None:
    with pytest.raises(ValueError, match="do not match"):
        expand(template, Rng(1), {"tool": "awl"})


def test_a_slot_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="axe"):
        expand("{axe}", Rng(1), {})


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_is_valid_and_has_only_known_slots(name: str) -> None:
    lists = {**load_text("words"), **load_text("names"), **load_text("facts")["lists"]}
    values = {**lists, **dict.fromkeys(FILLED, "it")}
    for template in set(templates(load_text(name))):
        text = expand(template, Rng(template), values)
        assert not re.search(r"[\[\]{}]|\(n\)|  +[a-z]|\.\.$| ,", text), template


def test_random_choices_are_the_same_everywhere() -> None:
    """Compare with values from CPython 3.11, which the standard library guarantees for later versions."""
    rng = Rng(7, "mail")
    assert [rng.below(1000) for _ in range(4)] == [433, 878, 317, 200]
    assert rng.shuffled(list("gumshoe")) == list("ehmogus")
    assert [rng.pick_weighted({"a": 1, "b": 3}) for _ in range(6)] == list("abbbbb")


@given(st.integers(), st.integers(-5, 5), st.integers(0, 9), st.lists(st.integers(), min_size=1, unique=True))
def test_random_choices_stay_in_range(seed: int, low: int, width: int, items: list[int]) -> None:
    rng = Rng(seed)
    assert low <= rng.between(low, low + width) <= low + width
    assert rng.pick(items) in items
    assert Counter(rng.shuffled(items)) == Counter(items)
    assert len(set(rng.sample(items, width))) == min(width, len(items))


def test_weights_determine_frequencies() -> None:
    rng = Rng(1)
    counts = Counter(rng.pick_weighted({"rare": 1.0, "never": 0.0, "common": 9.0}) for _ in range(5000))
    assert counts["never"] == 0
    assert 400 < counts["rare"] < 600
    assert 2350 < sum(rng.chance(0.5) for _ in range(5000)) < 2650
