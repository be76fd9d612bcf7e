"""Results within a budget: pages, hits and header fields that are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.environments.budgets import cut, cut_hit, join_within, show_page, split_pages
from gumshoe.environments.tools import ToolError

TEXT = st.text(st.sampled_from("ab \n…é"), max_size=400) | st.text(max_size=50)
LIMIT = st.integers(min_value=1, max_value=60)


@given(TEXT, LIMIT)
def test_pages_have_the_whole_text_within_the_limit(text: str, limit: int) -> None:
    pages = split_pages(text, limit)
    assert "".join(pages) == text
    assert all(len(page) <= limit for page in pages)
    assert all(pages) or pages == [""]


@given(st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=60), st.integers(20, 60))
def test_pages_end_with_whole_words(words: list[str], limit: int) -> None:
    pages = split_pages(" ".join(words), limit)
    assert all(page.endswith(" ") for page in pages[:-1])


def test_pages_prefer_to_end_with_a_line() -> None:
    assert split_pages("One line.\nAnother line.\nThe last one.", 27) == ["One line.\nAnother line.\n", "The last one."]


@pytest.mark.parametrize("page", [-1, 0, 3])
def test_a_page_that_does_not_exist_is_rejected_with_the_last_one(page: int) -> None:
    with pytest.raises(ToolError, match="2"):
        show_page("Head", "word " * 10, page, 30)


def test_only_the_first_page_has_the_head_and_a_single_one_no_number() -> None:
    assert show_page("Head", "Text", 1, None) == show_page("Head", "Text", 1, 30) == "Head\n\nText"
    assert show_page("Head", "one two three", 1, 8) == "Head\nPage 1 of 2\n\none two "
    assert show_page("Head", "one two three", 2, 8) == "Page 2 of 2\n\nthree"


@given(TEXT, TEXT, st.text("ab ", max_size=9), st.integers(40, 300))
def test_title_and_snippet_are_within_the_limit(title: str, snippet: str, query: str, limit: int) -> None:
    shown = cut_hit(title, snippet, query, limit)
    assert sum(map(len, shown)) <= limit
    if len(title) + len(snippet) <= limit:
        assert shown == (title, snippet)


def test_a_snippet_that_is_cut_keeps_the_words_of_the_query() -> None:
    snippet = f"{'Nothing here. ' * 9}The gas contract was signed. {'Nothing there. ' * 9}"
    _, shown = cut_hit("Re: Contract", snippet, "contracts gas", 60)
    assert "gas contract" in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")


@pytest.mark.parametrize("query", ["gas", "İstanbul", "istanbul", "İSTANBUL"])
def test_letters_that_are_longer_in_lower_case_do_not_move_a_snippet(query: str) -> None:
    snippet = f"{'İş. ' * 90}The gas contract with İstanbul was signed. {'Nothing there. ' * 9}"
    _, shown = cut_hit("Re: Contract", snippet, query, 60)
    assert query[1:].lower() in shown


@given(st.lists(st.text("ab@.", min_size=1, max_size=30), min_size=1, max_size=30), st.integers(40, 200))
def test_recipients_beyond_the_limit_are_counted(names: list[str], limit: int) -> None:
    shown = join_within(names, limit)
    joined = ", ".join(names)
    assert shown == joined if len(joined) <= limit else shown.endswith(" more")
    *kept, last = shown.split(", ")
    if last.endswith(" more"):
        assert len(kept) + int(last.removeprefix("and ").removesuffix(" more")) == len(names)
        assert len(shown) <= limit + len(last) + 2


@given(TEXT, LIMIT)
def test_a_text_that_is_cut_has_a_mark(text: str, limit: int) -> None:
    shown = cut(text, limit)
    assert shown == text if len(text) <= limit else shown.endswith(" …")
