"""Chat templates of other projects, and a table of what is derived from them.

`python -m tests.rollouts.chat_templates --llama-cpp DIR` writes docs/results/chat-templates.md. DIR is an unpacked
source distribution of llama-cpp-python (`pip download --no-deps --no-binary llama-cpp-python llama-cpp-python`).
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gumshoe.errors import UsageError
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.rendering import STYLES, TOOL
from tests.rollouts.conversations import make_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "results" / "chat-templates.md"
# What looks like a control token. A template does not say which of its tags are tokens of the tokenizer.
_TOKEN = re.compile(
    r"<\|[^<>|\s'\"{}]+\|?>|<[^<>\s'\"{}]*\|>|</?[a-z_:]+>|<SPECIAL_\d+>|<｜[^｜<>\s]+｜>"  # noqa: RUF001
    r"|\[/?[A-Z_]{3,}\]|\[e~\[|\]~b\]|\]~!b\[|\]<\]\w+\[>\["
)
_NO_TOKENS = {"<item>", "</item>", "</invoke>"}
_INTRODUCTION = """# Chat templates

Which chat templates allow token-exact episodes with tools, and what is derived from them. The templates are those that
TRL {trl} ships and those in llama-cpp-python {llama_cpp} (llama.cpp's collection). Each is tried with a small
tokenizer that has its control tokens, with one question and turns with calls (see
[token-exact episodes](../explain/token-exact.md)).

- **Calls**: form in which the model writes calls; "in the text" if the template does not render calls itself.
- **Several**: several calls in one turn are possible.
- **Ends with**: token that ends a turn with calls.
- **Reasoning**: tags around reasoning.
- **Earlier reasoning**: what the template does with the reasoning of earlier turns of one question: it is `kept` in
  the history, or `dropped`, so that `reasoning_history: drop` splits an episode into segments.

{accepted} of {total} templates are accepted. {unknown} of the others leave out tools. The rest are not accepted for
these reasons: Command R+ moves its instructions to the end of the conversation in each turn, which rewrites the
history; GigaChat3 begins calls with the token that ends a turn; transformers cannot render those of Kimi K2 in this
collection (its sandbox forbids `append`).

Four of Mistral's templates were also tried with Mistral's own tokenizer, from mistral-common: parts of a conversation
that are encoded one by one have the ids of the whole conversation.

Made with `python -m tests.rollouts.chat_templates --llama-cpp DIR`; tests compare the tables with the code.
"""
_HEAD = "| Template | Calls | Several | Ends with | Reasoning | Earlier reasoning |\n|---|---|---|---|---|---|\n"


@dataclass(frozen=True, slots=True)
class Row:
    """A template and the format that was derived from it, or the code of the error."""

    name: str
    chat: ChatFormat | None
    error: str = ""

    def render(self) -> str:
        """Return the row as Markdown."""
        if self.chat is None:
            return f"| {self.name} | not accepted: `{self.error.removeprefix('rollouts.')}` | | | | |"
        found = self.chat.template
        form = f"{found.form.name}, in the text" if found.style.calls_in_content else found.form.name
        history = "kept" if found.dropped_reasoning is None else "dropped"
        several = "yes" if found.allows_parallel else "no"
        cells = (form, several, _code(found.stop), f"{_code(found.tags.opening)} {_code(found.tags.closing)}", history)
        return f"| {self.name} | {' | '.join(cells)} |"


def trl_templates() -> dict[str, str]:
    """Return the templates that TRL ships, by name."""
    package = find_spec("trl")  # an import would take a second
    assert package is not None
    assert package.origin is not None
    found = sorted((Path(package.origin).parent / "chat_templates").glob("*.jinja"))
    return {each.stem: each.read_text() for each in found}


def llama_cpp_templates(place: Path) -> dict[str, str]:
    """Return the templates in an unpacked source distribution of llama-cpp-python, by name."""
    found = sorted(place.glob("**/vendor/llama.cpp/models/templates/*.jinja"))
    return {each.stem: each.read_text() for each in found}


def tokenizer_for(source: str) -> Any:
    """Return a tokenizer with a template and with the control tokens that it writes."""
    tokens = set(_TOKEN.findall(source)) | {"<s>", "</s>"}
    for style in STYLES:  # some tokens are put together from parts
        call = [{"type": "function", "id": "call00000", "function": {"name": "look", "arguments": {"word": "x"}}}]
        messages = [
            *style.start("S", "U"),
            {"role": "assistant", "content": "", "tool_calls": call},
            {"role": "tool", "name": "look", "tool_call_id": "call00000", "content": "R"},
        ]
        try:
            tokenizer = make_tokenizer(source, *sorted(tokens))
            tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
            text = tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False, add_generation_prompt=True)
        except Exception:  # noqa: BLE001 - templates raise anything; the next style may work
            continue
        tokens |= {token for token in _TOKEN.findall(text) if "|" in token or "｜" in token}  # noqa: RUF001
        break
    tokenizer = make_tokenizer(source, *sorted(tokens - _NO_TOKENS))
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    return tokenizer


def describe(name: str, source: str) -> Row:
    """Return the row of a template."""
    try:
        return Row(name, ChatFormat(tokenizer_for(source)))
    except UsageError as error:
        return Row(name, None, error.code)


@cache
def trl_row(name: str) -> Row:
    """Return the row of a template of TRL."""
    return describe(name, trl_templates()[name])


def drop_reasoning_tags(chat: ChatFormat, text: str) -> str:
    """Return a text without spaces and tags of empty reasoning, which templates write in the last turn only."""
    for tag in (chat.template.tags.opening, chat.template.tags.closing):
        text = text.replace(tag, "")
    return "".join(text.split())


def render_page(llama_cpp: Mapping[str, str], llama_cpp_version: str) -> str:
    """Return the page with the tables."""
    tables = [[describe(*each) for each in templates.items()] for templates in (trl_templates(), llama_cpp)]
    rows = [row for table in tables for row in table]
    introduction = _INTRODUCTION.format(
        trl=version("trl"),
        llama_cpp=llama_cpp_version,
        accepted=sum(row.chat is not None for row in rows),
        total=len(rows),
        unknown=sum(row.error == "rollouts.template-no-tools" for row in rows),
    )
    parts = [
        f"\n## {title}\n\n{_HEAD}" + "".join(f"{row.render()}\n" for row in table)
        for title, table in zip(("TRL", "llama.cpp"), tables, strict=True)
    ]
    return introduction + "".join(parts)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.rollouts.chat_templates")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR")
    place: Path = parser.parse_args().llama_cpp
    release = next(place.glob("**/llama_cpp_python-*"), place).name.rpartition("-")[2]
    PAGE.write_text(render_page(llama_cpp_templates(place), release))


if __name__ == "__main__":
    main()
