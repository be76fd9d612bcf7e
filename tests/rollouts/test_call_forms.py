"""Each form reads what its family writes, names what is wrong, and reads hostile text quickly."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.environments.tools import Call
from gumshoe.rollouts.call_forms import FORMS, CallForm, NoCallError, UnusableCallError, find_form
from tests.cpu_time import limit_cpu
from tests.rollouts.call_examples import BROKEN, EVERYTHING, EXAMPLES, LOOK, PROSE, TOOL
from tests.scenarios.questions import QUICK
from tests.tiers import nightly_except

FEW = settings(QUICK, max_examples=15)  # for each of forty forms
IN_CI = {"hermes", "qwen-xml", "glm", "kimi-k2", "mistral", "harmony", "deepseek-v3.1", "gemma", "llama-json", "olmo3"}
BY_NAME = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def parse(form: str, text: str) -> list[Call]:
    """Return the calls that a form reads in a text."""
    return find_form(form).parse(text, [TOOL])


@pytest.mark.parametrize(
    ("form", "text", "calls", "outside"), EXAMPLES, ids=lambda value: value[:14] if isinstance(value, str) else ""
)
def test_calls_are_read_in_order_and_the_text_around_them(
    form: str, text: str, calls: list[Call], outside: str
) -> None:
    assert parse(form, text) == calls
    assert find_form(form).outside(text) == outside


def test_the_text_of_the_final_channel_is_outside() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 5.<|return|>"
    assert find_form("harmony").outside(text) == "It is 5."


@BY_NAME
def test_prose_has_no_call(form: CallForm) -> None:
    for text in PROSE:
        with pytest.raises(NoCallError):
            form.parse(text, [TOOL])
        assert form.outside(text) == text


@pytest.mark.parametrize(("form", "text", "why"), BROKEN, ids=lambda value: value[:30].strip())
def test_an_unusable_call_is_refused_with_the_reason(form: str, text: str, why: str) -> None:
    with pytest.raises(UnusableCallError, match=re.escape(why)) as refused:
        parse(form, text)
    assert not isinstance(refused.value, NoCallError)


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CALLS = st.lists(
    st.builds(
        Call,
        st.from_regex(r"[a-z][a-z_0-9]{0,9}", fullmatch=True).map(lambda name: f"{name}_"),
        st.fixed_dictionaries(
            {},
            optional={
                "word": WORDS,
                "n": st.integers(-(10**9), 10**9),
                "x": st.floats(allow_nan=False, allow_infinity=False),
                "sure": st.booleans(),
                "many": st.lists(WORDS, max_size=3),
                "thing": st.dictionaries(st.just("k"), WORDS),
            },
        ),
    ),
    min_size=1,
    max_size=3,
)


def tools_of(calls: list[Call]) -> list[dict[str, Any]]:
    """Return the schemas of the tools that are called."""
    return [{"type": "function", "function": {**TOOL["function"], "name": call.name}} for call in calls]


@BY_NAME
@FEW
@given(calls=CALLS)
def test_calls_that_a_form_writes_are_read_back(form: CallForm, calls: list[Call]) -> None:
    read = form.parse(form.write(calls), tools_of(calls))
    assert [(call.name, call.arguments) for call in read] == [(call.name, call.arguments) for call in calls]


PIECES = st.sampled_from(
    ['{"name": "look"', ', "arguments": ', *"{}[]()<>,:='\"\n\\", "look", "word", "1e999", "\\ud800"]
)


@BY_NAME
@FEW
@given(data=st.data())
def test_any_text_is_read_or_refused(form: CallForm, data: st.DataObject) -> None:
    pieces = st.sampled_from(form.marks) | PIECES if form.marks else PIECES
    text = form.open + data.draw(st.lists(pieces | st.text(max_size=3), max_size=14).map("".join))
    try:
        calls = form.parse(text, [TOOL])
    except UnusableCallError:
        calls = []
    for call in calls:
        json.dumps([call.name, call.arguments], allow_nan=False).encode()
    assert len(form.outside(text)) <= len(text)


MEGABYTE = 1_000_000
HOSTILE: dict[str, Callable[[str], str]] = {
    "many calls": lambda call: call * (MEGABYTE // len(call)),
    "cut off again and again": lambda call: call[: len(call) // 2] * (2 * MEGABYTE // len(call)),
    "spaces": lambda call: call[: len(call) // 2] + " " * MEGABYTE,
    "nested lists": lambda call: call.replace("[", "[" * MEGABYTE),
    "nested objects": lambda call: call.partition("a")[0] + '{"a":' * (MEGABYTE // 5),
    "an endless number": lambda call: call.replace("7", "7" * MEGABYTE),
    "escapes": lambda call: call[: len(call) // 2] + "'\\\"\\" * (MEGABYTE // 4),
    "recipients": lambda _: " to=" * (MEGABYTE // 8) + ">>>" * (MEGABYTE // 8) + "\n" * (MEGABYTE // 8),
}


@pytest.mark.ci
@pytest.mark.parametrize("form", nightly_except(IN_CI, FORMS), ids=lambda form: form.name)
def test_a_megabyte_of_hostile_text_is_read_quickly(form: CallForm) -> None:
    call = form.write([Call("look", {"word": "a", "n": 7, "many": ["b"]})])
    tag = form.open or call[:6]
    texts = {what: make(call) for what, make in HOSTILE.items()} | {"tags": tag * (MEGABYTE // len(tag))}
    for what, text in texts.items():
        with limit_cpu(5, what):  # 0.6 s where it takes longest
            with suppress(UnusableCallError):
                form.parse(text, [TOOL])
            form.outside(text)


@pytest.mark.parametrize("form", [form for form in FORMS if form.marks], ids=lambda form: form.name)
def test_marks_are_the_tags_that_a_form_writes(form: CallForm) -> None:
    text = form.write([Call("look", {"word": "a"}, "functions.look:0")])
    assert all("word" not in mark and "look" not in mark for mark in form.marks)
    assert form.name == "llama-json" or any(mark in text for mark in form.marks)


def test_an_id_that_a_form_has_is_written() -> None:
    for name, given_id in (
        ("mistral", "abcdefghi"),
        ("mistral-v11", "abcdefghi"),
        ("cohere", "7"),
        ("kimi-k2", "functions.look:7"),
    ):
        form, call = find_form(name), Call("look", {"word": "a"}, given_id)
        assert parse(name, form.write([call])) == [call]
        [unnamed] = parse(name, form.write([LOOK]))
        assert unnamed.id
        assert len(unnamed.id) == 9 or not name.startswith("mistral")


# What TRL's templates write.

TEMPLATES = {
    r"deepseekv3.*": "deepseek-v3",
    r"gemma4.*|diffusion_gemma.*": "gemma",
    r"glm4moe.*": "glm",
    r"gptoss.*": "harmony",
    r"lfm2_2_5.*|lfm2_v2.*": "lfm2",
    r"llama3_[12]": "llama-json",
    r"muse_glimmer.*": "muse-glimmer",
    r"nemotron_3.*|qwen3_[568].*": "qwen-xml",
    r"qwen2_5|qwen2_5_training|qwen3|qwen3_training|qwen3_instruct.*|qwen3_vl.*": "hermes",
}
WRITES_NO_CALLS = re.compile(
    r"cohere.*|deepseek_r1.*|gemma|gemma3?_training|gemma3|idefics3.*|lfm2(_training)?|llama3(_training)?|llava.*|phi3.*"
    r"|qwen2_5_vl.*|smolvlm.*"
)
SINGLE = {"harmony", "llama-json"}  # one call at a time


@cache
def load_templates() -> dict[str, str]:
    """Return TRL's templates by name."""
    found = find_spec("trl")  # found without being imported
    assert found
    assert found.origin
    return {each.stem: each.read_text() for each in (Path(found.origin).parent / "chat_templates").glob("*.jinja")}


def find_expected_form(template: str) -> str | None:
    """Return the name of the form that is expected to read what a template writes."""
    return next((form for names, form in TEMPLATES.items() if re.fullmatch(names, template)), None)


def render(template: str, calls: list[Call], *, as_text: bool) -> str:
    """Return what a template writes for a turn with calls, with what follows it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def fill(messages: list[dict[str, Any]], *, header: bool) -> str:
        rendered = render_jinja_template(
            conversations=[messages], tools=[TOOL], chat_template=template, add_generation_prompt=header,
            bos_token="<bos>", eos_token="<eos>",
        )[0]  # fmt: skip
        return str(rendered[0])

    start: list[dict[str, Any]] = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    made = [(call.name, json.dumps(call.arguments) if as_text else call.arguments) for call in calls]
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in made],
    }
    prompt, whole = fill(start, header=True), fill([*start, turn], header=False)
    if not whole.startswith(prompt):  # reasoning that the prompt opens is closed in other words
        shared = next(at for at in range(len(prompt)) if not whole.startswith(prompt[: at + 1]))
        prompt = prompt[: prompt.rindex("<", 0, shared)]
    return whole[len(prompt) :].rstrip().removesuffix("<|eot_id|>").removesuffix("<|call|>")


def test_each_template_of_trl_is_accounted_for() -> None:
    for name in load_templates():
        assert (find_expected_form(name) is None) == (WRITES_NO_CALLS.fullmatch(name) is not None), name


@pytest.mark.parametrize("template", sorted(name for name in load_templates() if find_expected_form(name)))
def test_the_first_form_that_reads_what_a_template_writes_is_its_family_s(template: str) -> None:
    expected = find_expected_form(template)
    arguments = EVERYTHING
    if expected == "lfm2":  # writes quotes and backslashes as they are
        arguments = json.loads(json.dumps(EVERYTHING).replace("'", "").replace('\\"', "").replace("\\\\", ""))
    for calls in ([Call("look", arguments)], [Call("look", {})], [Call("look", {"word": ""}), LOOK]):
        if len(calls) > 1 and expected in SINGLE:
            continue
        text = render(load_templates()[template], calls, as_text=template == "deepseekv3")
        assert next((form.name for form in FORMS if reads(form, text, calls)), None) == expected


def reads(form: CallForm, text: str, calls: list[Call]) -> bool:
    """Return True if a form reads exactly these calls, and no type is changed."""
    try:
        read = form.parse(text, [TOOL])
    except UnusableCallError:
        return False
    return [repr(sorted(call.arguments.items())) for call in read] == [
        repr(sorted(call.arguments.items())) for call in calls
    ]
