"""Values that no tool can use are bad arguments, whatever the tool, and the message can be sent to a model."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.environments.argument_checks import find_bad_values, join_faults
from gumshoe.environments.tools import BadArgumentsError, Call, Toolbox, ToolError, UnknownToolError
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.call_forms import UnusableCallError
from gumshoe.rollouts.chat_answers import ApiCall
from tests.environments.test_base import environment, index  # noqa: F401 - a fixture

HALF, NUL, LONG = "a\ud800", "a\0b", 2**63
CALLS: dict[str, dict[str, Any]] = {
    "search_inbox": {
        "keywords": ["gas"], "sender": "bob@example.com", "recipient": "ann", "sent_after": "2001-01-01",
        "sent_before": "2002-01-01", "one_per_thread": False,
    },
    "read_email": {"message_id": "<1@example.com>", "whole_thread": False},
    "return_final_answer": {"answer": "42", "message_ids": ["<1@example.com>"]},
}  # fmt: skip
FIELDS = [(tool, name) for tool, arguments in CALLS.items() for name in arguments]


def take(value: dict[str, Any], number: int = 0) -> str:
    """Take anything.

    Args:
        value: Anything.
        number: A number.
    """
    return f"{value} {number}"


@pytest.mark.parametrize("bad", [HALF, NUL, [HALF], [NUL], {"k": HALF}, {HALF: 1}, LONG, -LONG - 1, float("nan")])
@pytest.mark.parametrize(("tool", "name"), FIELDS)
def test_a_bad_value_in_any_argument_is_a_bad_argument(
    index: MailIndex, tool: str, name: str, bad: Any  # noqa: F811
) -> None:  # fmt: skip
    place = environment(index)
    with pytest.raises(BadArgumentsError) as refused:
        place.toolbox.run(Call(tool, {**CALLS[tool], name: bad}))
    assert name in str(refused.value)
    str(refused.value).encode()
    assert not place.finished
    assert place.record.searches == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": {"k": [HALF]}},
        {"value": {"k": {NUL: 1}}},
        {"value": {"k": 10**5000}},
        {"value": {}, "number": 10**5000},
        {"value": {"k": float("inf")}},
        {"value": {"k": list(range(20_000))}},
        {"value": {}, HALF: 1},
        {"value": {}, "self": 1, "args": 2},
        {f"{number} {HALF}": 1 for number in range(20_000)},
        {"x" * 10**6: {"y" * 10**6: [NUL] * 100}},
    ],
)
def test_tools_that_take_anything_do_not_get_bad_values(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadArgumentsError) as refused:
        Toolbox([take]).run(Call("take", arguments))
    str(refused.value).encode()
    assert len(str(refused.value)) < 1100, "it goes into the context of the model"


def test_values_that_are_nested_deeply_are_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadArgumentsError):
        Toolbox([take]).run(Call("take", {"value": {"k": deep}}))


def test_an_unknown_tool_is_named_briefly() -> None:
    with pytest.raises(UnknownToolError) as refused:
        Toolbox([take]).run(Call(HALF * 10**5, {}))
    assert len(str(refused.value).encode()) < 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(CALLS)), st.data())
def test_no_arguments_raise_anything_else(index: MailIndex, tool: str, data: st.DataObject) -> None:  # noqa: F811
    changed = data.draw(st.dictionaries(st.sampled_from(sorted(CALLS[tool])) | st.text(max_size=4), VALUES, max_size=3))
    place = environment(index)
    try:
        shown = place.toolbox.run(Call(tool, {**CALLS[tool], **changed}))
    except (BadArgumentsError, ToolError) as error:
        shown = str(error)
    shown.encode()
    place.toolbox.run(Call("read_email", {"message_id": "<1@example.com>"}))


@given(VALUES)
def test_values_without_faults_can_be_written(value: Any) -> None:
    import json

    faults = join_faults(find_bad_values({"value": value}))
    if not faults:
        assert b"\0" not in json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": NaN}', '{"a": 1e999}', "[" * 10**5, "9" * 5000, "[]"])
def test_calls_of_chat_models_that_are_not_json_are_unusable(arguments: str) -> None:
    with pytest.raises(UnusableCallError):
        ApiCall("1", "take", arguments).parse()
