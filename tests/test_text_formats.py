"""JSON and YAML from outside: what cannot be stored or printed is refused, with one class of error."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.json_text import MAX_DEPTH, InvalidJsonError, load_json
from gumshoe.plugins import parse_named
from gumshoe.yaml_text import InvalidYamlError, load_yaml
from tests.errors import raises

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
MERGES = "a0: &a0 {x: 1, y: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30)
)
LARGE = f"a: &a {{{', '.join(f'k{n}: 1' for n in range(400))}}}\n" + "".join(f"b{n}: {{<<: *a}}\n" for n in range(300))
BAD_YAML = {
    "a key twice": "a: 1\nb: 2\na: 3",
    "a key twice, deep": "s: {t: [{a: 1, a: 1}]}",
    "a key twice, in a merged mapping": "s: [[&t {a: 1, a: 1}]]\nu: {<<: *t}",
    "itself": "&a [*a]",
    "aliases that multiply": BOMB,
    "merges that multiply": MERGES,
    "merges of a large mapping": LARGE,
    "nested deeply": "[" * 3000 + "]" * 3000,
    "nested as deeply as it is long": "{a: [" * 100_000,
    "nested a little too deeply": "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2),
    "half a character": '"\\ud800"',
    "half a character in a key": '{"\\udfff": 1}',
    "NUL": 'a: ["\\0"]',
    "no integer": 'a: !!int ""',
    "no boolean": "a: !!bool maybe",
    "no time": "a: !!timestamp soon",
    "no day": "a: 2024-13-45",
    "a long number": f"a: {'9' * 5000}",
    "a Python object": "!!python/object/apply:os.getcwd []",
    "an unknown alias": "*a",
    "not closed": "{a: [",
    "another control character": "a: \x01",
}
BAD_JSON = {
    "NaN": '{"a": NaN}',
    "infinite": '{"a": -Infinity}',
    "too large": '{"a": [1e999]}',
    "a long number": "9" * 5000,
    "nested deeply": "[" * 100_000,
    "nested a little too deeply": '{"a":' * (MAX_DEPTH + 2) + "1" + "}" * (MAX_DEPTH + 2),
    "half a character": '{"a": ["\\ud800"]}',
    "half a character, other case": '"\\uDfFf"',
    "half a character in a key": '{"\\ud800": 1}',
    "NUL": '{"a": "\\u0000"}',
    "not UTF-8": b'"\xff"',
    "half a character as bytes": b'"\xed\xa0\x80"',
    "empty": "",
}


@pytest.mark.parametrize("text", BAD_YAML.values(), ids=list(BAD_YAML))
def test_yaml_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(InvalidYamlError) as refused:
        load_yaml(text)
    assert "\n" not in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", BAD_JSON.values(), ids=list(BAD_JSON))
def test_json_that_cannot_be_used_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidJsonError):
        load_json(text)


def test_what_is_allowed_stays_as_it_is() -> None:
    assert load_yaml("a: &x {b: 1}\nc: {<<: *x, b: 2}\nd: 1e-5\ne: 2024-01-02") == {
        **yaml.safe_load("a: {b: 1}\nc: {b: 2}\nd: 1e-5\ne: 2024-01-02")
    }
    merged_early = "a: [[&x {<<: {b: 1}, b: 2}]]\nc: {<<: *x}"  # PyYAML merges into x before it constructs x
    assert load_yaml(merged_early) == {"a": [[{"b": 2}]], "c": {"b": 2}}
    assert load_yaml("a: 2024-01-02\nb: [1, null]", only_text=True) == {"a": "2024-01-02", "b": ["1", "null"]}
    assert load_yaml("a: !!int 5", only_text=True) == {"a": "5"}
    assert load_yaml("") is None
    assert load_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert load_json(deep) == load_yaml(deep)
    assert load_json('"a\\u0000"', is_recorded=True) == "a\0"
    assert load_json('["\\u0000", -Infinity]', is_recorded=True) == ["\0", -math.inf]
    with pytest.raises(InvalidJsonError):
        load_json('"\\u0000\\ud800"', is_recorded=True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc\n\u20ac"), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(VALUES)
def test_values_are_read_as_they_were_written(value: Any) -> None:
    assert load_json(json.dumps(value)) == value
    assert load_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.text("[]{}&*!:,-\"'ab01 \n#?|>%@\\ud800<~t\t."))
def test_yaml_of_any_form_is_read_or_refused(text: str) -> None:
    for only_text in (False, True):
        try:
            value = load_yaml(text, only_text=only_text)
        except InvalidYamlError:
            continue
        json.dumps(value, default=str).encode()


@pytest.mark.parametrize("text", [each for each in BAD_YAML.values() if each != BAD_YAML["NUL"]])
def test_every_reader_of_yaml_refuses_it(text: str, tmp_path: Path) -> None:
    from gumshoe.cluster.commands import _read_values
    from gumshoe.mail.source_list import read_source_list
    from gumshoe.rewards.judge_registry import parse_judge
    from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
    from gumshoe.serving.key_file import read_keys
    from gumshoe.serving.settings import read_settings
    from gumshoe.training.settings_sources import resolve
    from gumshoe_pipelines.graphs import read_values

    path = tmp_path / "file.yaml"
    path.write_text(text)
    path.chmod(0o600)
    with raises("settings.config-not-yaml", path):
        resolve(str(path), {}, {})
    with raises("settings.value-not-yaml", "optimizer.learning_rate"):
        resolve(None, {"optimizer.learning_rate": text}, {})
    with raises("serving.settings-unreadable", path):
        read_settings(path, {})
    with raises("serving.key-file-invalid-yaml", path):
        read_keys(path)
    with raises("deploy.values-unreadable", path):
        _read_values([path], [])
    with raises("deploy.invalid-set-option"):
        _read_values([], [f"a={text}"])
    with raises("pipelines.invalid-yaml"):
        read_values([], path)
    with raises("pipelines.invalid-yaml"):
        read_values([f"a={text}"], None)
    with raises("rollouts.invalid-chat-settings", path):
        ChatSettings.parse(str(path))
    with raises("judges.invalid-yaml"):
        parse_judge("{" + text)
    assert parse_named(text, "settings") is None
    if text.startswith(("a: !!", "a: 2024", "a: 9", "!!python")):  # only values of types are wrong
        return
    with raises("mail.invalid-source-list", path):
        read_source_list(path)
