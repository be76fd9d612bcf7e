"""Chat templates of other projects: which are accepted, and conversations as they render them."""

import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.tools import Call
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.chat_format.rendering import TOOL
from tests.rollouts.chat_templates import (
    PAGE,
    drop_reasoning_tags,
    llama_cpp_templates,
    render_page,
    trl_row,
    trl_templates,
)


@cache
def page_lines() -> frozenset[str]:
    return frozenset(PAGE.read_text().splitlines())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", trl_templates())


def test_the_page_shows_what_is_derived_from_templates_of_trl(name: str) -> None:
    assert trl_row(name).render() in page_lines(), "run python -m tests.rollouts.chat_templates"


def test_a_conversation_is_what_the_template_renders(name: str) -> None:
    """Prompt, turns and results, each encoded on its own, together have the text of the whole conversation."""
    chat = trl_row(name).chat
    if chat is None or name.startswith("diffusion_gemma"):  # its prompt has a header that its history has not
        return
    template = chat.template
    start = template.style.start("Be brief.", "Who?")
    text, messages = chat.encode_prompt("Be brief.", "Who?", [TOOL]).text, list(start)
    for place, (word, result) in enumerate([("one", "Nothing."), ("two", 'A "b".')]):
        call = Call("look", {"word": word, "count": place}, f"call{place:05d}")
        text += chat.encode_turn(chat.write_turn([call])).text
        text += chat.encode_results([call], [result], chat.stop_ids[0], place).text
        messages += [template.style.turn([call]), *template.style.results([call], [result])]
    assert not chat.write_turn([call], "I look.").rstrip().endswith("I look."), "text comes before calls"
    whole = template.render(messages, [TOOL], header=True)
    assert drop_reasoning_tags(chat, text) == drop_reasoning_tags(chat, whole)


def test_a_call_begins_as_its_form_says(name: str) -> None:
    """The beginning tells a call from JSON, in turns that may be either."""
    chat = trl_row(name).chat
    openings = chat.template.form.openings() if chat is not None else ()
    if chat is not None and openings:
        turn = chat.write_turn([Call("look", {"word": "one"}, "call00000")])
        assert turn.rpartition(chat.template.tags.closing)[2].lstrip().startswith(openings)


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source distribution of llama-cpp-python, which has the templates of llama.cpp."""
    place = tmp_path_factory.mktemp("llama-cpp")
    options = ["--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(place)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "llama-cpp-python==0.3.36"], check=True)
    (package,) = place.glob("*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(place, filter="data")
    return place


@pytest.mark.nightly
def test_the_page_shows_what_is_derived_from_templates_of_llama_cpp(llama_cpp: Path) -> None:
    assert render_page(llama_cpp_templates(llama_cpp), "0.3.36") == PAGE.read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "model",
    [
        "Mistral-Small-3.2-24B-Instruct-2506",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "unsloth-mistral-Devstral-Small-2507",
        "mistralai-Ministral-3-14B-Reasoning-2512",
    ],
)
def test_parts_of_conversations_have_the_ids_of_mistral_s_own_tokenizer(llama_cpp: Path, model: str) -> None:
    """The tokenizer is the one in mistral-common: 131,072 tokens, 1,000 of them control tokens."""
    from importlib.util import find_spec

    from transformers.integrations.mistral import convert_tekken_tokenizer  # type: ignore[attr-defined]

    package = find_spec("mistral_common")
    assert package is not None
    assert package.origin is not None
    tokenizer: Any = convert_tekken_tokenizer(str(Path(package.origin).parent / "data" / "tekken_240911.json"))
    chat = ChatFormat(tokenizer, ChatSettings(template=llama_cpp_templates(llama_cpp)[model]))
    call = Call("look", {"word": "héllo, 'world'", "count": 3})
    prompt = chat.encode_prompt("Be brief.", "Who paid 1,095 €?", [TOOL])
    turn = chat.encode_turn(chat.write_turn([call]))
    glue = chat.encode_results([call], ['A "b".\n'], turn.ids[-1])
    whole = tokenizer.encode(prompt.text + turn.text + glue.text, add_special_tokens=False)
    assert whole == [*prompt.ids, *turn.ids, *glue.ids]
    assert chat.parse_turn(chat.decode_turn(turn.ids)[0], [TOOL]).calls[0].arguments == call.arguments
