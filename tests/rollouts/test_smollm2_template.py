"""The chat template for SmolLM2 is read by the chat format, lists tools in few tokens, and has one call in a turn."""

from pathlib import Path
from typing import Any

import pytest

import gumshoe.artifacts.base_models
from gumshoe.artifacts.base_models.gguf_conversion import convert_gguf
from gumshoe.artifacts.base_models.gguf_file import GGUFFile
from gumshoe.environments.tools import Call
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.rendering import TOOL
from tests.artifacts.base_models.gguf_files import write_gguf

TEMPLATE = Path(gumshoe.artifacts.base_models.__file__).with_name("smollm2.jinja")
CALL = Call("look", {"word": 'a "b"', "count": 3, "exact": True, "tags": ["x", "y"]})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("smollm2")
    file = write_gguf(place / "model.gguf")
    convert_gguf(GGUFFile.open(file), place, lambda *_, **__: None, TEMPLATE.read_text())
    return load_tokenizer(place)


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer)


def test_calls_are_read_and_results_have_a_role_of_their_own(chat: ChatFormat) -> None:
    assert chat.template.form.name == "hermes"
    assert not chat.allows_parallel
    assert chat.stop_ids == (2,)
    turn = chat.write_turn([CALL], "I look.")
    assert turn.startswith("I look.\n<tool_call>{")
    (read,) = chat.parse_turn(turn, [TOOL]).calls
    assert (read.name, read.arguments) == (CALL.name, CALL.arguments)
    glue = chat.encode_results([CALL], ["Nothing."], chat.stop_ids[0]).text
    assert glue == "\n<|im_start|>tool\nNothing.<|im_end|>\n<|im_start|>assistant\n"


def test_tools_are_listed_without_their_schema(chat: ChatFormat) -> None:
    text = chat.encode_prompt("Be brief.", "Who?", [TOOL]).text
    assert text == (
        "<|im_start|>system\nBe brief.\n\nTools:\nlook: Look.\n- word (string): A word.\n"
        "- count? (integer): A number.\n- exact? (boolean): Exactly.\n- tags? (list of string): Tags.\n\n"
        "To call a tool, write:\n"
        '<tool_call>{"name": "tool", "arguments": {"parameter": "value"}}</tool_call><|im_end|>\n'
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_other_schemas_stay_complete(tokenizer: Any) -> None:
    properties: dict[str, Any] = {
        "order": {"enum": ["date", "size"]},
        "limit": {"type": ["integer", "null"], "description": "At\n  most."},
        "any": {},
        "filter": {"type": "object", "properties": {"sender": {"type": "string"}}},
    }
    tool = {
        "type": "function",
        "function": {"name": "find", "parameters": {"type": "object", "properties": properties}},
    }
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tools=[tool], tokenize=False)
    listed = text.partition("Tools:\n")[2].partition("\n\n")[0].splitlines()
    assert listed == [
        "find: ",
        '- order? ("date"|"size")',
        "- limit? (integer|null): At most.",
        "- any? ({})",
        '- filter? ({"type": "object", "properties": {"sender": {"type": "string"}}})',
    ]
    assert "named SmolLM" in text


def test_a_tool_without_parameters(tokenizer: Any) -> None:
    tool = {"type": "function", "function": {"name": "stop", "description": "Stop.", "parameters": {"type": "object"}}}
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tools=[tool], tokenize=False)
    assert "\nstop: Stop.\n\n" in text
