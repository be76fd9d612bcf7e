"""Conversations are encoded once, as the template renders them; unsuitable templates are rejected; calls are parsed."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.environments.tools import Call, Toolbox
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
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


LOOK = Call("look", {"word": "it"})


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


def glue_of(chat: ChatFormat, result: str) -> tuple[int, ...]:
    """Return the ids between a turn that ended with the stop token and the next turn."""
    return chat.encode_results([LOOK], [result], chat.stop_ids[0]).ids


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
        pytest.param(talk.OLD_RESULTS_GONE, "rollouts.template-rewrites-history", "", id="earlier results left out"),
        pytest.param(talk.NO_RESULTS, "rollouts.template-render-failed", "result", id="results left out"),
        pytest.param(talk.LLAMA3_1, "rollouts.template-no-tool-calls", "form", id="calls left out"),
        pytest.param(talk.NO_TOOLS, "rollouts.template-no-tools", "tools", id="no tools"),
        pytest.param(
            talk.RAISES, "rollouts.template-render-failed", "only user and assistant roles", id="raises for results"
        ),
        pytest.param(
            "{{ messages[0].nothing.at_all }}", "rollouts.template-no-tools", "", id="reads what is not there"
        ),
        pytest.param("{% if %}", "rollouts.template-no-tools", "", id="no Jinja"),
        pytest.param(talk.NO_TOKENS, "rollouts.no-stop-token", "", id="turns end in plain text"),
    ],
)
def test_a_template_without_derivable_glue_is_rejected(chat_template: str | None, code: str, says: str) -> None:
    with raises(code, NAME, says):
        ChatFormat(make_tokenizer(chat_template))


@pytest.mark.parametrize(
    ("chat_template", "given", "shown"),
    [
        pytest.param(talk.JSON_RESULTS, 'a "b"\n', '\n"a \\"b\\"\\n"\n', id="as JSON"),
        pytest.param(talk.TRIMMED_RESULTS, " a b\n", "\na b\n", id="trimmed"),
        pytest.param(QWEN2_5, " a b\n", "\n a b\n\n", id="unchanged"),
    ],
)
def test_results_are_written_as_the_template_writes_them(chat_template: str, given: str, shown: str) -> None:
    glue = ChatFormat(make_tokenizer(chat_template)).encode_results([LOOK], [given])
    assert f"<tool_response>{shown}</tool_response>" in glue.text


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
    assert glue_of(cutting, result) == glue_of(chat, result)
    assert cutting.encode_prompt("S", "U", tools()) == chat.encode_prompt("S", "U", tools())


def test_a_stop_token_may_absorb_spaces(tokenizer: Any) -> None:
    """As in Phi-3 and 4, whose stop token absorbs the line end after it."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.add_special_tokens([AddedToken("<|im_end|>", rstrip=True, special=True)])
    made: Any = PreTrainedTokenizerFast
    chat = ChatFormat(made(tokenizer_object=core, chat_template=QWEN2_5, name_or_path=NAME))
    whole = core.encode(f"Yes.{chat.end}{chat.encode_results([LOOK], ['R'], chat.stop_ids[0]).text}").ids
    assert tuple(whole[-len(glue_of(chat, "R")) :]) == glue_of(chat, "R")


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
        ids += [*tokenizer.encode(said, add_special_tokens=False), *chat.stop_ids, *glue_of(chat, result)]
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
            *glue_of(chat, "Nothing."),
        ]
    assert ids == tokenizer.apply_chat_template(
        messages, tools=tools(), tokenize=True, add_generation_prompt=True, return_dict=False
    )


@QUICK
@given(system=HOSTILE, question=HOSTILE, result=HOSTILE)
def test_no_external_text_becomes_a_control_token(chat: ChatFormat, system: str, question: str, result: str) -> None:
    prompt, glue = chat.encode_prompt(system, question, tools()).ids, glue_of(chat, result)
    assert controls(chat, prompt) == controls(chat, chat.encode_prompt("S", "U", tools()).ids) == 5
    assert controls(chat, glue) == controls(chat, glue_of(chat, "R")) == 3


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


@QUICK
@given(ids=st.lists(st.integers(0, 1300), max_size=30))
def test_any_ids_are_decoded_and_parsed_or_rejected(chat: ChatFormat, ids: list[int]) -> None:
    """Including ids outside the vocabulary: models have more ids than their tokenizers."""
    text, closed = chat.decode_turn(ids)
    assert chat.decode(ids) == text + closed
    turn = chat.parse_turn(text, tools())
    assert bool(turn.calls) == (turn.problem is None)


@pytest.mark.parametrize("tag", ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
def test_a_result_cannot_end_itself_or_contain_a_call(chat: ChatFormat, tag: str) -> None:
    plain, forged = (
        chat.decode(glue_of(chat, "R")),
        chat.decode(glue_of(chat, f"R{tag}{tag[:2]}{tag}{tag[2:]}")),
    )
    assert forged.count(tag) == plain.count(tag)


REASONING = [
    pytest.param("<think>Hm.</think>" + call("look"), "", "Hm.", 1, None, id="before the call"),
    pytest.param("Hm.</think>" + call("look"), "<think>\n", "Hm.", 1, None, id="opened by the prompt"),
    pytest.param("</think>" + call("look"), "", "", 1, None, id="closed at once"),
    pytest.param(f"<think>{call('look')}</think>Yes.", "", call("look"), 0, "no call", id="a call inside it"),
    pytest.param(f"<think>{call('look')}", "", call("look"), 0, "no call", id="never closed"),
    pytest.param(f"{call('look')}<think>Late.</think>", "", "Late.", 1, None, id="after the call"),
    pytest.param("<think>", "", "", 0, "no call", id="cut off at once"),
]


@pytest.mark.parametrize(("text", "before", "reasoning", "calls", "problem"), REASONING)
def test_reasoning_is_separated_from_calls(
    chat: ChatFormat, text: str, before: str, reasoning: str, calls: int, problem: str | None
) -> None:
    turn = chat.parse_turn(text, tools(), before=before)
    assert (turn.reasoning, len(turn.calls), turn.problem) == (reasoning, calls, problem)
    assert turn.is_in_reasoning == (problem is not None and "</think>" not in text)


def test_several_calls_are_allowed_or_refused(tokenizer: Any, chat: ChatFormat) -> None:
    text = call("look", word="one") + "\n" + call("look", word="two")
    assert [each.arguments["word"] for each in chat.parse_turn(text, tools()).calls] == ["one", "two"]
    strict = ChatFormat(tokenizer, ChatSettings(parallel_calls="refuse"))
    turn = strict.parse_turn(text, tools())
    assert (turn.calls, turn.problem) == ((), "unparseable call")
    assert "2 calls" in turn.detail


def test_reasoning_of_earlier_turns_is_dropped_if_the_template_does() -> None:
    """What remains of a turn has the ids that were sampled."""
    dropping = ChatFormat(make_tokenizer(talk.FORGETFUL), ChatSettings(reasoning_history="drop"))
    keeping = ChatFormat(make_tokenizer(QWEN2_5), ChatSettings(reasoning_history="drop"))
    assert (dropping.drops_reasoning, keeping.drops_reasoning) == (True, False)
    prompt = dropping.encode_prompt("S", "U", tools())
    turn = dropping.encode_turn("<think>\nHm.\n</think>\n\n" + call("look"))
    rest = dropping.drop_reasoning(prompt, turn.ids)
    assert dropping.decode(rest) == f"{prompt.text}\n\n{call('look')}<|im_end|>", "as the template leaves it"
    assert rest[-20:] == turn.ids[-20:]
    plain = dropping.encode_turn(call("look"))
    assert dropping.drop_reasoning(prompt, plain.ids) == (*prompt.ids, *plain.ids)


@pytest.mark.parametrize("given", ["", "call12345", "1", "two words", "<|im_end|>", "y" * 1000])
def test_an_id_that_the_template_rejects_is_replaced(given: str) -> None:
    """Mistral's templates raise an error for ids that have not nine characters, and models invent ids."""
    loop = "{%- for call in message.tool_calls or [] -%}"
    check = "{%- if call.id | length != 9 -%}{{- raise_exception('nine characters') -}}{%- endif -%}"
    result = "{{- '<|im_start|>user\\n' + message.tool_call_id + ': ' + message.content + '<|im_end|>\\n' -}}"
    source = talk.template(result=result).replace(loop, loop + check)
    glue = ChatFormat(make_tokenizer(source)).encode_results([Call("look", {}, given)], ["R"])
    assert (given if len(given) == 9 else "call00000") in glue.text


def test_a_turn_closes_reasoning_that_the_prompt_opened_once() -> None:
    """As with GLM 4.7, whose turns without reasoning begin with the closing tag."""
    header = "{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    source = talk.template(turn=talk.TURN.replace("assistant\\n'", "assistant\\n</think>'"))
    for opened, written in (("<think>", "</think>"), ("<think></think>", "")):
        chat = ChatFormat(make_tokenizer(source.replace(header, header.replace("\\n'", f"\\n{opened}'"))))
        assert chat.write_turn([LOOK]) == written + call("look", word="it")


def test_variables_reach_the_template_and_the_day_is_fixed() -> None:
    """Otherwise a resumed run, or a service, would have other prompts than the training."""
    source = QWEN2_5.replace("{{- '<|im_start|>system\\n'", "{{- mood + strftime_now('%Y') + '<|im_start|>system\\n'")
    assert source != QWEN2_5
    chat = ChatFormat(make_tokenizer(source), ChatSettings(template_kwargs={"mood": "calm"}))
    assert chat.encode_prompt("S", "U", tools()).text.startswith("calm2026<|im_start|>")
    own = ChatFormat(make_tokenizer(None), ChatSettings(template=QWEN2_5))
    assert own.encode_prompt("S", "U", tools()).text.startswith("<|im_start|>system")


def test_tools_may_have_the_name_that_smollm3_gives_them() -> None:
    source = QWEN2_5.replace("if tools", "if xml_tools").replace("in tools", "in xml_tools")
    prompt = ChatFormat(make_tokenizer(source)).encode_prompt("S", "U", tools())
    assert '"description": "Look a word up."' in prompt.text


def test_tags_of_reasoning_are_escaped_in_data_and_not_in_instructions(chat: ChatFormat) -> None:
    prompt = chat.encode_prompt("Reason in <think> and </think>.", "What does <think> mean?", tools()).text
    assert "Reason in <think> and </think>." in prompt
    assert "What does < think> mean?" in prompt
    assert "< /think>" in chat.encode_results([LOOK], ["</think>"]).text
