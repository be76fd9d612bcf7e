"""Test the check of text from outside."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.text_checks import (
    InvalidTextError,
    check_text,
    describe_bad_character,
    find_bad_texts,
    is_encodable,
    replace_bad_characters,
)

ANY_TEXT = st.text(st.characters(codec=None, categories=None) | st.sampled_from("\0\ud800\udfff\ue000"))


@given(ANY_TEXT)
def test_text_is_allowed_exactly_if_utf8_and_c_can_hold_it(text: str) -> None:
    try:
        can_be_held = b"\0" not in text.encode()
    except UnicodeEncodeError:
        can_be_held = False
    assert is_encodable(text) is can_be_held
    assert bool(describe_bad_character(text)) is not can_be_held
    repaired = replace_bad_characters(text)
    assert is_encodable(repaired)
    assert len(repaired) == len(text)
    assert (repaired == text) is can_be_held


@pytest.mark.parametrize(
    ("text", "shown"), [("ab\0", "U+0000 at character 3"), ("\ud83d", "U+D83D at character 1"), ("\udc00a", "U+DC00")]
)
def test_a_forbidden_character_is_named(text: str, shown: str) -> None:
    with pytest.raises(InvalidTextError, match="subject is not valid text") as caught:
        check_text(text, "subject")
    assert caught.value.code == "text.invalid-character"
    assert shown in str(caught.value)
    str(caught.value).encode()


def test_ordinary_text_is_returned_unchanged() -> None:
    text = "tab\t newline\n emoji 😀 private \ue000 \uffff"
    assert check_text(text, "it") is text


@pytest.mark.parametrize(
    ("written", "paths"),
    [
        (r'"\ud800"', [""]),
        (r'{"a": {"b": ["x", "\u0000"]}}', ["a.b.1"]),
        (r'{"\udfff": 1}', ["\ufffd"]),
        (r'[["\ud800\ud800"], "\ud83d\ude00"]', ["0.0"]),
        ('{"a": "é"}', []),
        ("7", []),
    ],
)
def test_faults_are_found_anywhere_in_json(written: str, paths: list[str]) -> None:
    assert [path for path, _ in find_bad_texts(json.loads(written))] == paths


def test_deeply_nested_values_are_searched() -> None:
    value: Any = "\ud800"
    for _ in range(100_000):
        value = [value]
    assert len(list(find_bad_texts(value))) == 1
