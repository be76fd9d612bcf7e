"""Conversations of any shape have the ids that the chat template gives them, or are refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gumshoe.artifacts.base_models
import gumshoe.tiny
from gumshoe.environments.tools import Call
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded
from gumshoe.rollouts.chat_format.conversation_format import MAX_CACHED, ChatMessage
from gumshoe.rollouts.chat_format.rendering import TOOL
from tests.errors import raises
from tests.rollouts import conversations as talk
from tests.rollouts.chat_templates import drop_reasoning_tags, trl_row, trl_templates
from tests.rollouts.conversations import CONTROL, NAME, make_tokenizer
from tests.scenarios.questions import QUICK

SYSTEM, MORE = ChatMessage("system", "Be brief."), ChatMessage("system", "Use tools.")
WHO, WHEN = ChatMessage("user", "Who?"), ChatMessage("user", 'And "when"?\n\nSay.\n')
RESULTS = ('{"a": "b"}\n', "Nothing.")
HOSTILE = st.lists(
    st.sampled_from([*CONTROL, "<|im_", "end|>", "<tool_call>", "</tool_response>", "\n", " ", "gas"]), max_size=9
).map("".join)


@dataclass(frozen=True, slots=True)
class Step:
    """A turn with some calls, or with text, and the messages after it and the results."""

    text: str = ""
    calls: int = 0
    others: tuple[ChatMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A conversation, and the codes with which templates refuse it, by the beginnings of their names."""

    opening: tuple[ChatMessage, ...]
    steps: tuple[Step, ...] = ()
    has_tools: bool = True
    refused: str = ""
    """E.g. "gptoss qwen3_vl: message-left-out; mistral: template-render-failed"."""

    def find_code(self, name: str) -> str:
        """Return the code with which a template is expected to refuse it, or "" if it is expected to render it."""
        for names, code in (each.split(": ") for each in self.refused.split("; ") if each):
            if any(name.startswith(each) for each in names.split()):
                return code and f"rollouts.{code}"
        return ""


START = (SYSTEM, WHO)
LATE_SYSTEM = "gptoss qwen3_vl tiny system-gone: message-left-out; qwen3_5 qwen3_6 qwen3_8: template-render-failed"
AFTER_TURN = f"{LATE_SYSTEM}; muse_glimmer: template-rewrites-history"
MOVED = "moved-tools: template-rewrites-history"
ALTERNATE = "alternating: template-render-failed"
SHAPES = {
    "usual": Shape(START, (Step(calls=1), Step(calls=1))),
    "question alone": Shape((WHO,)),
    "no tools": Shape(START, has_tools=False),
    "two questions": Shape((SYSTEM, WHO, WHEN), refused=ALTERNATE),
    "two questions alone": Shape((WHO, WHEN), refused=ALTERNATE),
    "no question": Shape(
        (SYSTEM,), refused="system-gone: message-left-out; llama3 qwen3_5 qwen3_6 qwen3_8: template-render-failed"
    ),
    "two system messages": Shape((SYSTEM, MORE, WHO), refused=LATE_SYSTEM),
    "system message after the question": Shape((SYSTEM, WHO, MORE), refused=LATE_SYSTEM),
    "question after an answer": Shape(START, (Step("Ann.", others=(WHEN,)), Step(calls=1)), refused=MOVED),
    "two questions after an answer": Shape(START, (Step("Ann.", others=(WHEN, WHO)),), refused=f"{MOVED}; {ALTERNATE}"),
    "chat without tools": Shape((WHO,), (Step("Ann.", others=(WHEN,)), Step("Bob.", others=(WHO,))), has_tools=False),
    "answer after results": Shape(START, (Step(calls=1), Step("Ann.", others=(WHEN,)), Step(calls=1)), refused=MOVED),
    "question after results": Shape(
        START, (Step(calls=1, others=(WHEN,)), Step(calls=1)), refused=f"{MOVED}; {ALTERNATE}"
    ),
    "system message after results": Shape(START, (Step(calls=1, others=(MORE,)),), refused=AFTER_TURN),
    "system message after an answer": Shape(
        START, (Step("Ann.", others=(MORE, WHEN)),), refused=f"glm4moe: message-left-out; {MOVED}; {AFTER_TURN}"
    ),
    "two answers": Shape(
        START,
        (Step("Ann."), Step("Bob.", others=(WHEN,))),
        refused=f"glm4moe_training: ; glm4moe: template-turn-end-varies; {MOVED}; {ALTERNATE}",
    ),
    "two calls": Shape(
        START,
        (Step(calls=2), Step(calls=2, others=(WHEN,))),
        refused=f"gptoss llama3 smollm2: several-calls; {MOVED}; {ALTERNATE}",
    ),
    "text before a call": Shape(
        START, (Step("I look.", calls=1),), refused="gemma4 llama3 muse_glimmer: message-left-out"
    ),
}
EMPTY_REASONING = ("nemotron", "qwen3")
"""Templates that write empty reasoning in some turns only, or begin it in the header and end it in the turn."""

MERGING = ("gemma4", "gemma4_v3", "gemma4_v4", "gemma4_v5")
"""Templates that begin a second answer as a turn of its own, and merge it with the first one later."""


@cache
def own_templates() -> dict[str, str]:
    smollm2 = Path(gumshoe.artifacts.base_models.__file__).with_name("smollm2.jinja")
    return {
        "smollm2": smollm2.read_text(),
        "any-system": talk.ANY_SYSTEM,
        "system-gone": talk.SYSTEM_GONE,
        "alternating": talk.ALTERNATING,
        "moved-tools": talk.MOVED_TOOLS,
        "json-results": talk.ANY_SYSTEM.replace(
            "message.content + '\\n</tool", "(message.content | tojson) + '\\n</tool"
        ),
    }


@cache
def chat_of(name: str) -> ChatFormat | None:
    """Return the chat format of a template, or None if it is not accepted."""
    if name == "tiny":
        return ChatFormat(load_tokenizer(Path(gumshoe.tiny.__file__).parent / "policy"))
    if name in own_templates():
        return ChatFormat(make_tokenizer(own_templates()[name]))
    return None if name.startswith("diffusion_gemma") else trl_row(name).chat  # the header of its prompt varies


def accepted(name: str) -> ChatFormat:
    """Return the chat format of a template that is accepted."""
    chat = chat_of(name)
    assert chat is not None
    return chat


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", [*own_templates(), "tiny", *trl_templates()])


def calls_of(count: int, earlier: int = 0) -> list[Call]:
    return [Call("look", {"word": "one"}, f"call{earlier + at:05d}") for at in range(count)]


def compose(chat: ChatFormat, shape: Shape) -> tuple[str, list[int], str]:
    """Return the text and the ids of a conversation whose parts are encoded one by one, and the template's own text."""
    style, own, tools = chat.template.style, chat.conversations, [TOOL] if shape.has_tools else []
    messages: list[dict[str, Any]] = [{"role": each.role, "content": each.text} for each in shape.opening]
    if shape.opening[:2] == START:
        messages[:2] = style.start(SYSTEM.text, WHO.text)
    before = own.encode_opening(shape.opening, tools)
    text, ids, earlier = before.text, [*before.ids], 0
    for step in shape.steps:
        calls, results = calls_of(step.calls, earlier), RESULTS[: step.calls]
        turn = own.encode_turn(calls, step.text)
        after = own.encode_following(calls, results, step.others, turn.ids[-1], earlier, has_tools=shape.has_tools)
        text, ids, earlier = text + turn.text + after.text, [*ids, *turn.ids, *after.ids], earlier + step.calls
        messages += [style.turn(calls, step.text), *style.results(calls, results)]
        messages += [{"role": each.role, "content": each.text} for each in step.others]
    return text, ids, chat.template.render(messages, tools, header=True)


def test_parts_of_a_conversation_are_what_the_template_renders_or_are_refused(name: str) -> None:
    chat = chat_of(name)
    if chat is None:
        return
    for title, shape in SHAPES.items():
        if code := shape.find_code(name):
            with raises(code, chat.template.error("", "").message):
                compose(chat, shape)
            continue
        text, ids, whole = compose(chat, shape)
        if name.startswith(EMPTY_REASONING):
            assert drop_reasoning_tags(chat, text) == drop_reasoning_tags(chat, whole), title
        elif title == "two answers" and name in MERGING:
            assert text.count("<|turn>model") == whole.count("<|turn>model") + 1
        else:
            assert text == whole, title
            assert ids == [*chat.encode(whole).ids], title


def test_the_usual_shape_has_the_ids_of_prompts_and_results(name: str) -> None:
    chat = chat_of(name)
    if chat is None:
        return
    assert chat.conversations.encode_opening(START, [TOOL]) == chat.encode_prompt(SYSTEM.text, WHO.text, [TOOL])
    for ended_with in (None, chat.stop_ids[0], 5):
        found = chat.conversations.encode_following(calls_of(1), RESULTS[:1], (), ended_with, 2)
        assert found == chat.encode_results(calls_of(1), RESULTS[:1], ended_with, 2)


def test_a_turn_of_text_that_was_cut_off_is_ended_first(name: str) -> None:
    chat = chat_of(name)
    if chat is None:
        return
    turn = chat.conversations.encode_turn((), "Ann.")
    ended, cut_off = (
        chat.conversations.encode_following((), (), [WHEN], last, has_tools=False)
        for last in (turn.ids[-1], turn.ids[0])
    )
    assert cut_off.ids == (turn.ids[-1], *ended.ids)
    assert cut_off.text == chat.decode(turn.ids[-1:]) + ended.text


def test_invented_turns_are_read_again(name: str) -> None:
    chat = chat_of(name)
    if chat is None:
        return
    for calls, text in (([], "Ann."), (calls_of(1), "")):
        ids = chat.conversations.encode_turn(calls, text).ids
        said = chat.decode_turn(ids)[0] if ids[-1] in chat.stop_ids else chat.decode(ids[:-1])
        parts = chat.parse_turn(said, [TOOL], before=chat.template.header)
        assert [each.arguments for each in parts.calls] == [each.arguments for each in calls]
        assert not text or text in parts.text


def test_turns_of_text_and_of_calls_may_end_with_different_tokens() -> None:
    """As those of gpt-oss, which also ends the last turn of a conversation with another token."""
    chat = accepted("gptoss")
    answer = chat.conversations.encode_turn((), "Ann.")
    assert answer.text == "<|channel|>final<|message|>Ann.<|end|>"
    for calls, results, last, text in (
        ((), (), "<|return|>", "<|start|>user"),
        ((), (), "<|end|>", "<|start|>user"),
        ((), (), "<|call|>", "<|end|><|start|>user"),
        (calls_of(1), ("R",), "<|call|>", "<|start|>functions.look"),
        (calls_of(1), ("R",), "<|return|>", "<|call|><|start|>functions.look"),
    ):
        found = chat.conversations.encode_following(calls, results, (WHEN,), *chat.encode(last).ids)
        assert found.text.startswith(text), last
        assert found.ids == chat.encode(found.text).ids


def test_a_stop_token_of_text_may_absorb_spaces(tokenizer: Any) -> None:
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.add_special_tokens([AddedToken("<|eot|>", rstrip=True, special=True)])
    turn = talk.TURN.replace("'<|im_end|>\\n'", "('<|im_end|>' if message.tool_calls else '<|eot|>') + '\\n'")
    source = talk.ANY_SYSTEM.replace(talk.TURN, turn)
    made: Any = PreTrainedTokenizerFast
    chat = ChatFormat(made(tokenizer_object=core, chat_template=source, name_or_path=NAME))
    answer = chat.conversations.encode_turn((), "Ann.")
    after = chat.conversations.encode_following((), (), [WHEN], answer.ids[-1])
    assert answer.text == "Ann.<|eot|>"
    assert [*answer.ids, *after.ids] == core.encode(answer.text + after.text).ids


REFUSED = [
    pytest.param(talk.SYSTEM_FIRST, (WHO, SYSTEM), None, "rollouts.message-left-out", id="moved to the beginning"),
    pytest.param(talk.MERGED_QUESTIONS, (WHO, WHEN), None, "rollouts.message-left-out", id="merged"),
    pytest.param(talk.MERGED_QUESTIONS, (WHO,), (WHEN, WHO), "rollouts.message-left-out", id="merged after a turn"),
    pytest.param(talk.QWEN2_5, (WHO,), None, "rollouts.message-left-out", id="shown twice"),
    pytest.param(talk.QWEN2_5, START, (MORE,), "rollouts.message-left-out", id="left out after a turn"),
    pytest.param(talk.ALTERNATING, (WHO,), (), "rollouts.template-render-failed", id="next turn cannot be rendered"),
    pytest.param(talk.NO_HEADER_AFTER_ANSWER, START, (), "rollouts.no-turn-header", id="no header"),
    pytest.param(talk.ANY_SYSTEM, (), None, "rollouts.template-render-failed", id="no message"),
]


@pytest.mark.parametrize(("source", "opening", "others", "code"), REFUSED)
def test_messages_that_a_template_drops_merges_or_moves_are_refused(
    source: str, opening: Sequence[ChatMessage], others: Sequence[ChatMessage] | None, code: str
) -> None:
    own = ChatFormat(make_tokenizer(source)).conversations
    if others is not None:
        own.encode_opening(opening, [TOOL])
    roles = [each.role for each in others or opening] if code == "rollouts.message-left-out" else []
    with raises(code, NAME, ", ".join(roles)):
        if others is None:
            own.encode_opening(opening, [TOOL])
        else:
            own.encode_following((), (), others)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param(
            talk.ANY_SYSTEM.replace("role == 'user' -", "role == 'user' and message.content -"), "", id="empty"
        ),
        pytest.param(talk.ANY_SYSTEM.replace("content + '<", "content.replace('/think', '') + '<"), "/think", id="cut"),
    ],
)
def test_messages_that_a_template_drops_or_changes_because_of_their_text_are_refused(source: str, text: str) -> None:
    own, bad = ChatFormat(make_tokenizer(source)).conversations, ChatMessage("user", text)
    assert own.encode_opening([WHO, WHEN], [TOOL]).ids
    for others in ([bad], [WHO, bad]):
        with raises("rollouts.message-left-out", NAME):
            own.encode_opening([WHO, *others], [TOOL])
        with raises("rollouts.message-left-out", NAME):
            own.encode_following((), (), others)


def test_tools_that_a_template_moves_do_not_stand_in_a_later_question() -> None:
    own = accepted("moved-tools").conversations
    with raises("rollouts.template-rewrites-history"):
        own.encode_following((), (), [WHEN])
    assert "tools" not in own.encode_following((), (), [WHEN], has_tools=False).text


@pytest.mark.parametrize(
    "condition",
    ["tools is none", "tools | length == 0"],
)
def test_no_tools_are_given_as_the_template_takes_them(condition: str) -> None:
    """Some templates show a heading for an empty list, others need one."""
    source = talk.ANY_SYSTEM.replace("{%- if tools -%}", f"{{%- if {condition} -%}}No tools.{{%- else -%}}")
    prompt = ChatFormat(make_tokenizer(source)).conversations.encode_opening(START, [])
    assert "No tools." in prompt.text


@QUICK
@given(text=HOSTILE, second=HOSTILE)
def test_no_text_of_an_agent_becomes_a_control_token(text: str, second: str) -> None:
    chat = accepted("any-system")
    own = chat.conversations
    tool = {"type": "function", "function": {"name": "find", "description": text, "parameters": {second: text}}}
    calls = [Call(f"look{''.join(text.split())}", {f"word{text}": [text, {"x": second}]}, text)]

    def encode(first: str, other: str, made: list[Call], schema: dict[str, Any]) -> list[int]:
        others = [ChatMessage("system", first), ChatMessage("user", other)]
        openings = [own.encode_opening(each, [schema]) for each in ([*START], [*others, *others])]
        turns = [own.encode_turn(made, other), own.encode_turn((), first)]
        glue = [own.encode_following(made, [first], others), own.encode_following((), (), others)]
        return [sum(chat.decode([token]) in CONTROL for token in each.ids) for each in (*openings, *turns, *glue)]

    assert encode(f"x{text}", f"y{second}", calls, tool) == encode("x", "y", calls_of(1), TOOL)


def test_marks_in_messages_are_text() -> None:
    own = accepted("any-system").conversations
    marks = ChatMessage("user", "mark5last mark5system mark5question mark5tool mark5part000000x mark5next")
    assert marks.text in own.encode_opening([marks, marks], [TOOL]).text
    assert own.encode_following((), (), [marks]).text.count(marks.text) == 1
    assert own.encode_following(calls_of(1), [marks.text], [marks]).text.count(marks.text) == 2


def test_ids_that_a_template_rejects_are_replaced_in_a_turn_and_its_results() -> None:
    loop = "{%- for call in message.tool_calls or [] -%}"
    check = "{%- if call.id | length != 9 -%}{{- raise_exception('nine characters') -}}{%- endif -%}"
    source = talk.ANY_SYSTEM.replace(loop, loop + check)
    own = ChatFormat(make_tokenizer(source)).conversations
    call = Call("look", {"word": "one"}, "<|im_end|>")
    assert own.encode_turn([call]).text == own.encode_turn([Call("look", {"word": "one"}, "call00000")]).text
    assert own.encode_following([call], ["R"], [WHEN]).ids == own.encode_following(calls_of(1), ["R"], [WHEN]).ids


def test_what_agents_repeat_is_encoded_once_and_long_texts_are_not_kept() -> None:
    own = accepted("any-system").conversations
    encoders: list[Callable[[str], Encoded]] = [
        lambda text: own.encode_opening([WHO, ChatMessage("user", text)], []),
        lambda text: own.encode_opening([SYSTEM, ChatMessage("user", text)], []),
        lambda text: own.encode_following((), (), [ChatMessage("user", text)]),
        lambda text: own.encode_following(calls_of(1), [text], []),
        lambda text: own.encode_turn((), text),
    ]
    for encode in encoders:
        for length, is_kept in ((10, True), (MAX_CACHED + 1, False)):
            first, second = encode("x" * length), encode("x" * length)
            assert first == second
            assert (first is second) == is_kept
