"""Chat templates of other projects: which are accepted, and conversations as they render them."""

import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import pytest

from gumshoe.environments.tools import Call
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.rendering import TOOL
from tests.rollouts.chat_templates import (
    PAGE,
    Row,
    describe,
    llama_cpp_templates,
    render_page,
    tokenizer_for,
    trl_templates,
)


@cache
def row(name: str) -> Row:
    return describe(name, trl_templates()[name])


@cache
def page_lines() -> frozenset[str]:
    return frozenset(PAGE.read_text().splitlines())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", trl_templates())


def test_the_page_shows_what_is_derived_from_templates_of_trl(name: str) -> None:
    assert row(name).render() in page_lines(), "run python -m tests.rollouts.chat_templates"


def test_a_conversation_is_what_the_template_renders(name: str) -> None:
    """Prompt, turns and results, each encoded on its own, together have the text of the whole conversation."""
    template = row(name).template
    if template is None or name.startswith("diffusion_gemma"):  # its prompt has a header that its history has not
        return
    chat = ChatFormat(tokenizer_for(trl_templates()[name]))
    start = template.style.start("Be brief.", "Who?")
    text, messages = chat.encode_prompt("Be brief.", "Who?", [TOOL]).text, list(start)
    for place, (word, result) in enumerate([("one", "Nothing."), ("two", 'A "b".')]):
        call = Call("look", {"word": word, "count": place}, f"call{place:05d}")
        text += chat.encode_turn(chat.write_turn([call])).text
        text += chat.encode_results([call], [result], chat.stop_ids[0], place).text
        messages += [template.style.turn([call]), *template.style.results([call], [result])]
    whole = template.render(messages, [TOOL], header=True)
    assert drop_reasoning_tags(chat, text) == drop_reasoning_tags(chat, whole)


def drop_reasoning_tags(chat: ChatFormat, text: str) -> str:
    """Return a text without spaces and tags of empty reasoning, which templates write in the last turn only."""
    for tag in (chat.template.tags.opening, chat.template.tags.closing):
        text = text.replace(tag, "")
    return "".join(text.split())


@pytest.mark.nightly
def test_the_page_shows_what_is_derived_from_templates_of_llama_cpp(tmp_path: Path) -> None:
    """They come with the source distribution of llama-cpp-python."""
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "llama-cpp-python==0.3.36"], check=True)
    (package,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path, filter="data")
    assert render_page(llama_cpp_templates(tmp_path), "0.3.36") == PAGE.read_text()
