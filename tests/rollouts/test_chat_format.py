"""Conversations are encoded once, as the template renders them; unsuitable templates are rejected; calls are parsed."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.environments.tools import Call, Toolbox
from gumshoe.rollouts.chat_format import ChatFormat, NoCallError, UnusableCallError, parse_call
from tests.errors import raises
from tests.rollouts import conversations as talk
from tests.rollouts.conversations import CONTROL, NAME, QWEN2_5, call, make_tokenizer
from tests.scenarios.questions import QUICK

WORDS = st.text("ab Zé漢😀09.,'\"<>|{}\\/&", min_size=1, max_size=20).map(lambda text: f"x{text}")
CALL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from([*CONTROL, *CALL_TAGS])
TEXTS = ANYTHING.filter(lambda text: not any(each in text for each in (*CONTROL, *CALL_TAGS)))
HOSTILE = st.lists(
    st.sampled_from([*CONTROL, "<|im_", "end|>", "<|", "|>", "start", "\n", " ", "<", "gas", "assistant"]), max_size=12
).map("".join)
TURNS = st.builds(lambda thought, word: thought + "\n" + call("look", word=word), WORDS, TEXTS) | WORDS


def look(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return word


@cache
def tools() -> list[dict[str, Any]]:
    """Return the schema of the one tool."""
    return Toolbox([look]).schemas()


def tagged(text: str) -> str:
    """Return a text in call tags."""
    return f"<tool_call>{text}</tool_call>"


def controls(chat: ChatFormat, ids: Sequence[int]) -> int:
    """Count the control tokens in ids."""
    return sum(chat.decode([token]) in CONTROL for token in ids)


def test_a_turn_of_qwen2_5_ends_with_its_stop_token(chat: ChatFormat) -> None:
    assert [chat.decode([stop]) for stop in chat.stop_ids] == ["<|im_end|>"]


@pytest.mark.parametrize(
    ("chat_template", "code", "says"),
    [
        pytest.param(None, "rollouts.no-chat-template", "", id="no template"),
        pytest.param("", "rollouts.no-chat-template", "", id="empty template"),
        pytest.param(talk.QWEN3, "rollouts.template-rewrites-history", "thinking", id="thinking as in Qwen3"),
        pytest.param(talk.FORGETFUL, "rollouts.template-rewrites-history", "thinking", id="earlier thinking left out"),
        pytest.param(talk.OLD_RESULTS_GONE, "rollouts.template-rewrites-history", "", id="earlier results left out"),
        pytest.param(talk.JSON_RESULTS, "rollouts.template-rewrites-history", "", id="results as JSON"),
        pytest.param(talk.TRIMMED_RESULTS, "rollouts.template-changes-results", "", id="results trimmed"),
        pytest.param(talk.NO_RESULTS, "rollouts.template-rewrites-history", "", id="results left out"),
        pytest.param(talk.LLAMA3_1, "rollouts.template-no-tool-calls", "<tool_call>", id="Llama 3.1"),
        pytest.param(talk.NO_TOOLS, "rollouts.template-no-tool-calls", "<tool_call>", id="no tools"),
        pytest.param(
            talk.RAISES, "rollouts.template-render-failed", "only user and assistant roles", id="raises for results"
        ),
        pytest.param(
            "{{ messages[0].nothing.at_all }}", "rollouts.template-render-failed", "", id="reads what is not there"
        ),
        pytest.param("{% if %}", "rollouts.template-render-failed", "", id="no Jinja"),
        pytest.param(talk.END_OF_TEXT, "rollouts.no-stop-token", "", id="turns end in plain text"),
        pytest.param(talk.OPEN_UNTIL_RESULT, "rollouts.template-turn-end-varies", "", id="turns end in two ways"),
    ],
)
def test_a_template_without_derivable_glue_is_rejected(chat_template: str | None, code: str, says: str) -> None:
    with raises(code, NAME, says):
        ChatFormat(make_tokenizer(chat_template))


def test_the_template_of_qwen2_5_is_accepted_and_that_of_qwen3_rejected() -> None:
    """The templates are those in TRL."""
    published = files("trl") / "chat_templates"
    assert ChatFormat(make_tokenizer((published / "qwen2_5.jinja").read_text())).end == "<|im_end|>"
    with raises("rollouts.template-rewrites-history", NAME):
        ChatFormat(make_tokenizer((published / "qwen3.jinja").read_text()))


def test_truncation_and_padding_of_a_tokenizer_are_disabled(tokenizer: Any) -> None:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    chat = ChatFormat(tokenizer)
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.enable_truncation(40)
    core.enable_padding(length=400)
    made: Any = PreTrainedTokenizerFast
    cutting = ChatFormat(made(tokenizer_object=core, chat_template=QWEN2_5, name_or_path=NAME))
    result = "The invoice is due. " * 50
    assert cutting.encode_tool_result(result) == chat.encode_tool_result(result)
    assert cutting.encode_prompt("S", "U", tools()) == chat.encode_prompt("S", "U", tools())


def test_a_stop_token_that_absorbs_spaces_is_rejected(tokenizer: Any) -> None:
    """As in Phi-3, whose stop token absorbs the line end after it."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.add_special_tokens([AddedToken("<|im_end|>", rstrip=True, special=True)])
    made: Any = PreTrainedTokenizerFast
    greedy = made(tokenizer_object=core, chat_template=QWEN2_5, name_or_path=NAME)
    with raises("rollouts.stop-token-absorbs-spaces", NAME, "<|im_end|>"):
        ChatFormat(greedy)


def test_the_prompt_is_rendered_by_the_template(tokenizer: Any, chat: ChatFormat) -> None:
    messages = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "\n¿Qué?"}]
    expected = tokenizer.apply_chat_template(
        messages, tools=tools(), tokenize=True, add_generation_prompt=True, return_dict=False
    )
    prompt = chat.encode_prompt("Be brief. ", "\n¿Qué?", tools())
    assert list(prompt.ids) == expected
    assert prompt.text == chat.decode(prompt.ids)
    assert '{"name": "look", "description": "Look a word up."' in prompt.text


@cache
def with_tokens(*added: str) -> tuple[Any, ChatFormat]:
    """Return a tokenizer with additional tokens, and its chat format."""
    made = make_tokenizer(QWEN2_5, *added)
    return made, ChatFormat(made)


@pytest.mark.parametrize("added", [(), ("<tool_call>", "</tool_call>")], ids=["plain", "call tags are tokens"])
@QUICK
@given(turns=st.lists(st.tuples(TURNS, ANYTHING), min_size=1, max_size=4), question=ANYTHING)
def test_encoded_parts_equal_the_rendering_of_the_template(
    added: tuple[str, ...], turns: list[tuple[str, str]], question: str
) -> None:
    """Text from outside is escaped before it is rendered; text without control tokens stays as it is."""
    tokenizer, chat = with_tokens(*added)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": chat.escape_control_tokens(question)}]
    ids = [*chat.encode_prompt("S", question, tools()).ids]
    for said, result in turns:
        escaped = chat.escape_control_tokens(result)
        messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": escaped}]
        ids += [*tokenizer.encode(said, add_special_tokens=False), *chat.stop_ids, *chat.encode_tool_result(result).ids]
    assert ids == tokenizer.apply_chat_template(
        messages, tools=tools(), tokenize=True, add_generation_prompt=True, return_dict=False
    )


def test_calls_in_the_api_s_format_have_the_same_ids(tokenizer: Any, chat: ChatFormat) -> None:
    arguments = {"word": "é <b> 'x'", "several": ["a", 1, None, True]}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    for content in ("", "I look."):
        calls = [{"type": "function", "function": {"name": "look", "arguments": arguments}}]
        messages += [
            {"role": "assistant", "content": content, "tool_calls": calls},
            {"role": "tool", "content": "Nothing."},
        ]
    ids = [*chat.encode_prompt("S", "U", tools()).ids]
    for content in ("", "I look.\n"):
        said = content + call("look", **arguments)
        ids += [
            *tokenizer.encode(said, add_special_tokens=False),
            *chat.stop_ids,
            *chat.encode_tool_result("Nothing.").ids,
        ]
    assert ids == tokenizer.apply_chat_template(
        messages, tools=tools(), tokenize=True, add_generation_prompt=True, return_dict=False
    )


@QUICK
@given(system=HOSTILE, question=HOSTILE, result=HOSTILE)
def test_no_external_text_becomes_a_control_token(chat: ChatFormat, system: str, question: str, result: str) -> None:
    prompt, glue = chat.encode_prompt(system, question, tools()).ids, chat.encode_tool_result(result).ids
    assert controls(chat, prompt) == controls(chat, chat.encode_prompt("S", "U", tools()).ids) == 5
    assert controls(chat, glue) == controls(chat, chat.encode_tool_result("R").ids) == 3


@QUICK
@given(text=HOSTILE)
def test_escaped_text_is_still_readable(chat: ChatFormat, text: str) -> None:
    assert chat.escape_control_tokens(text).replace(" ", "") == text.replace(" ", "")
    assert not any(token in chat.escape_control_tokens(text) for token in CONTROL)


@QUICK
@given(text=TEXTS)
def test_text_without_control_tokens_is_unchanged(chat: ChatFormat, text: str) -> None:
    assert chat.escape_control_tokens(text) == text


def test_call_tags_are_escaped_and_common_words_are_not() -> None:
    chat = ChatFormat(make_tokenizer(QWEN2_5, "<tool_call>", "</tool_call>", "hello", "    ", "--"))
    assert (
        chat.escape_control_tokens("<tool_call> hello    you -- </tool_call>")
        == "< tool_call> hello    you -- < /tool_call>"
    )


def test_only_the_final_stop_token_is_removed_from_a_turn(tokenizer: Any, chat: ChatFormat) -> None:
    ids = tokenizer.encode("a<|im_end|>b<|endoftext|><|im_end|><|im_end|>", add_special_tokens=False)
    assert chat.decode_turn(ids) == ("a<|im_end|>b<|endoftext|><|im_end|>", "<|im_end|>")
    assert chat.decode_turn(ids[:-2]) == ("a<|im_end|>b<|endoftext|>", "")
    assert chat.decode(ids) == "a<|im_end|>b<|endoftext|><|im_end|><|im_end|>"
    assert chat.decode_turn([]) == ("", chat.decode([])) == ("", "")


@QUICK
@given(text=TEXTS)
def test_decoding_restores_the_exact_text(tokenizer: Any, chat: ChatFormat, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert chat.decode_turn([*ids, *chat.stop_ids]) == (chat.decode(ids), chat.end) == (text, chat.end)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(call("look", word="é"), Call("look", {"word": "é"}), id="as the template has it"),
        pytest.param(tagged('{"arguments":{},"name":"look"}'), Call("look", {}), id="on one line"),
        pytest.param(
            f"Let me see.\n{call('look')} Done. {{]", Call("look", {}), id="text around it, even text like JSON"
        ),
        pytest.param(f"</tool_call>{call('look')}</tool_call>", Call("look", {}), id="ends that nothing began"),
        pytest.param(f"<think>\nHm.\n</think>\n\n{call('look')}", Call("look", {}), id="after a thought"),
        pytest.param(
            call("look", words=["a", {"b": None}], many=2), Call("look", {"words": ["a", {"b": None}], "many": 2})
        ),
        pytest.param(
            tagged('{"name": "look", "arguments": {}, "why": "because"}'),
            Call("look", {}),
            id="a field too many",
        ),
        pytest.param(
            tagged('{"name": "look", "arguments": {"a": 1, "a": 2}}'),
            Call("look", {"a": 2}),
            id="an argument twice",
        ),
        pytest.param(tagged(r'{"name": "look", "arguments": {"a": "\ud83d\ude00"}}'), Call("look", {"a": "😀"})),
    ],
)
def test_the_call_of_a_turn_is_parsed(text: str, expected: Call) -> None:
    assert parse_call(text) == expected


@pytest.mark.parametrize("text", ["", "I think it was 5 May.", '{"name": "look", "arguments": {}}', "</tool_call>"])
def test_no_call_and_an_unusable_call_are_different_errors(text: str) -> None:
    with pytest.raises(NoCallError, match="no <tool_call>"):
        parse_call(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(call("look") + "\n" + call("look"), "2 calls", id="several calls"),
        pytest.param(call("look") + "<tool_call>", "2 calls", id="another call begun"),
        pytest.param('<tool_call>\n{"name": "look", "argum', "cut off", id="cut off"),
        pytest.param(call("look").removesuffix("</tool_call>"), "cut off", id="cut off before its end"),
        pytest.param(tagged('{"name": "look", "arguments": {},}'), "not JSON", id="trailing comma"),
        pytest.param(tagged('{"name": "look", "arguments": {"a": [1,]}}'), "not JSON", id="and in a list"),
        pytest.param(tagged("{'name': 'look', 'arguments': {}}"), "not JSON", id="single quotes"),
        pytest.param(tagged('{"name": "look", "arguments": {"a": "\n"}}'), "not JSON", id="raw line end"),
        pytest.param(tagged('{"name": "look", "arguments": {"a": NaN}}'), "not JSON", id="NaN"),
        pytest.param(tagged('{"name": "look", "arguments": {"a": -Infinity}}'), "not JSON", id="infinity"),
        pytest.param(tagged("[" * 100_000), "not JSON", id="nested too deep"),
        pytest.param(tagged("9" * 5000), "not JSON", id="endless number"),
        pytest.param(tagged(r'{"name": "look", "arguments": {"a": "\ud800"}}'), "not JSON", id="half a code point"),
        pytest.param(tagged(r'{"name": "\udfff", "arguments": {}}'), "not JSON", id="and in the name"),
        pytest.param(tagged(""), "not JSON", id="nothing"),
        pytest.param(tagged("look(word='a')"), "not JSON", id="Python"),
        pytest.param(tagged('"look"'), "is not {", id="a text"),
        pytest.param(tagged('[{"name": "look", "arguments": {}}]'), "is not {", id="a list"),
        pytest.param(tagged('{"name": "look"}'), "is not {", id="no arguments"),
        pytest.param(tagged('{"name": "look", "arguments": "{}"}'), "is not {", id="arguments as text"),
        pytest.param(tagged('{"name": "look", "parameters": {}}'), "is not {", id="parameters"),
        pytest.param(tagged('{"name": null, "arguments": {}}'), "is not {", id="no name"),
        pytest.param(call("answer", answer="the tag </tool_call>"), "not JSON", id="an end within a text"),
        pytest.param(call("answer", answer="the tag <tool_call>"), "2 calls", id="a beginning within a text"),
    ],
)
def test_an_unusable_call_is_rejected_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UnusableCallError, match=why) as refused:
        parse_call(text)
    assert not isinstance(refused.value, NoCallError)


@QUICK
@given(ids=st.lists(st.integers(0, 1300), max_size=30))
def test_any_ids_are_decoded_and_parsed_or_rejected(chat: ChatFormat, ids: list[int]) -> None:
    """Including ids outside the vocabulary: models have more ids than their tokenizers."""
    text, closed = chat.decode_turn(ids)
    assert chat.decode(ids) == text + closed
    check_parsed_or_rejected(text)


PARTS = ["<tool_call>", "</tool_call>", '{"name": "look"', ', "arguments": ', *'{},["\n\0', "\\ud800", "1e999"]


@QUICK
@given(text=st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=14).map("".join))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    check_parsed_or_rejected(text)


def check_parsed_or_rejected(text: str) -> None:
    """Check that a text is parsed, or rejected with the right error."""
    try:
        found = parse_call(text)
    except NoCallError:
        assert "<tool_call>" not in text
    except UnusableCallError:
        assert "<tool_call>" in text
    else:
        assert isinstance(found.name, str)
        assert isinstance(found.arguments, dict)
        repr(found).encode()


@pytest.mark.parametrize("tag", ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
def test_a_result_cannot_end_itself_or_contain_a_call(chat: ChatFormat, tag: str) -> None:
    plain, forged = (
        chat.decode(chat.encode_tool_result("R").ids),
        chat.decode(chat.encode_tool_result(f"R{tag}{tag[:2]}{tag}{tag[2:]}").ids),
    )
    assert forged.count(tag) == plain.count(tag)
