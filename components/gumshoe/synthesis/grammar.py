"""Expand templates with alternatives and slots: a few hundred sentences become many thousands.

`[one|two|]` is one of its alternatives, which may be empty or nested. `{slot}` is a value, and `{Slot}` the same value
with a capital letter. `a(n) {slot}` takes its article from the following word.

>>> expand("We need a(n) [new |]{tool}.", Rng(1), {"tool": "axe"})
'We need a new axe.'
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from gumshoe.synthesis.rng import Rng

Value: TypeAlias = str | Callable[[], str] | list[str]
"""Value of a slot: a text, a function that returns one, or a list to choose from."""

Node: TypeAlias = "str | Slot | Alternatives"

_TOKEN = re.compile(r"[\[\]|]|\{(\w+)\}|[^\[\]|{]+")
_ARTICLE = re.compile(r"\b([Aa])\(n\) (\W?)(\w+)")
_VOWEL_SOUND = re.compile(r"(?!uni|use|usu|eu|one\b|once\b)[aeiou]|hour|honest|heir|8|1[18](?!\d)", re.I)
_GAPS = [(re.compile(r"[ \t]{2,}"), " "), (re.compile(r" +([,.;:!?\n])"), r"\1"), (re.compile(r"\n +"), "\n")]


class Slot(str):
    """The name of a slot."""

    __slots__ = ()


class Alternatives(tuple[tuple[Node, ...], ...]):
    """Alternatives, each a sequence of nodes."""

    __slots__ = ()


@cache
def load_text(name: str) -> dict[str, Any]:
    """Return the content of `text/<name>.toml`."""
    return tomllib.loads((Path(__file__).parent / "text" / f"{name}.toml").read_text(encoding="utf-8"))


def expand(template: str, rng: Rng, values: Mapping[str, Value]) -> str:
    """Return a random expansion of a template.

    Raises:
        KeyError: if a slot has no value.
        ValueError: if the brackets do not match.
    """
    text = _render(_parse(template), rng, values)
    text = _ARTICLE.sub(_choose_article, text)
    for gap, closed in _GAPS:
        text = gap.sub(closed, text)
    return text.strip()


def expand_sentence(template: str, rng: Rng, values: Mapping[str, Value]) -> str:
    """Return an expansion that starts with a capital letter."""
    text = expand(template, rng, values)
    return text[:1].upper() + text[1:]


def _render(nodes: tuple[Node, ...], rng: Rng, values: Mapping[str, Value]) -> str:
    rendered = []
    for node in nodes:
        if isinstance(node, Alternatives):
            rendered.append(_render(rng.pick(node), rng, values))
        elif isinstance(node, Slot):
            rendered.append(_fill_slot(node, rng, values))
        else:
            rendered.append(node)
    return "".join(rendered)


def _fill_slot(slot: Slot, rng: Rng, values: Mapping[str, Value]) -> str:
    capital = slot[0].isupper()
    value = values[slot[0].lower() + slot[1:] if capital else str(slot)]
    text = value if isinstance(value, str) else rng.pick(value) if isinstance(value, list) else value()
    return text[:1].upper() + text[1:] if capital else text


@cache
def _parse(template: str) -> tuple[Node, ...]:
    stack: list[list[list[Node]]] = [[[]]]
    end = 0
    for token in _TOKEN.finditer(template):
        if token.start() != end:
            break
        end = token.end()
        text = token[0]
        if token[1]:
            stack[-1][-1].append(Slot(token[1]))
        elif text == "[":
            stack.append([[]])
        elif text == "|" and len(stack) > 1:
            stack[-1].append([])
        elif text == "]" and len(stack) > 1:
            choice = Alternatives(tuple(alternative) for alternative in stack.pop())
            stack[-1][-1].append(choice)
        else:
            stack[-1][-1].append(text)
    if end != len(template) or len(stack) > 1:
        raise ValueError(f"brackets or braces do not match in {template!r}")
    return tuple(stack[0][0])


def _choose_article(found: re.Match[str]) -> str:
    article = found[1] + "n" if _VOWEL_SOUND.match(found[3]) else found[1]
    return f"{article} {found[2]}{found[3]}"
