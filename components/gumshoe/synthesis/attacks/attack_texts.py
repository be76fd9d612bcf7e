"""Texts of attacks: instructions by goal, and their disguises by family, from the TOML files of this package."""

import base64
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from gumshoe.rewards.planted_attack import GOALS, Goal

FamilySplit = Literal["train", "held-out"]
LANGUAGES = ("en", "de", "fr", "es", "zh")
_ANY = "any"
_ZERO_WIDTH = "\u200b"
_HOMOGLYPHS = str.maketrans("aceopxyiABCEHKMOPTX", "асеорхуіАВСЕНКМОРТХ")  # noqa: RUF001 - Cyrillic


@dataclass(frozen=True, slots=True)
class AttackFamily:
    """A kind of disguise."""

    name: str
    split: FamilySplit
    carriers: tuple[str, ...]
    """Parts of a message that may carry the text."""
    goals: tuple[Goal, ...]
    texts: Mapping[str, tuple[str, ...]]
    """Wordings by language; all languages have the same number or their own."""
    messages: int = 1
    """Number of messages of one attack."""
    encodings: tuple[str, ...] = ()

    @property
    def all_texts(self) -> tuple[str, ...]:
        """Wordings in all languages."""
        return tuple(text for wordings in self.texts.values() for text in wordings)

    def wordings(self, language: str) -> tuple[str, ...]:
        """Return the wordings in a language."""
        return self.texts[language] if language in self.texts else self.texts[_ANY]


@cache
def load_families() -> Mapping[str, AttackFamily]:
    """Return the families by name, in the order of their file."""
    return {
        name: AttackFamily(
            name,
            fields["split"],
            tuple(fields["carriers"]),
            tuple(fields.get("goals", GOALS)),
            {language: tuple(each) for language, each in fields["texts"].items()},
            fields.get("messages", 1),
            tuple(fields.get("encodings", ())),
        )
        for name, fields in _load("families.toml")["families"].items()
    }


def load_instructions() -> Mapping[Goal, Mapping[str, tuple[str, ...]]]:
    """Return the wordings of instructions by goal and language, with slots for what is planted."""
    found = _load("goals.toml")
    return {goal: {language: tuple(each) for language, each in found[goal].items()} for goal in GOALS}


def load_leads() -> Mapping[str, tuple[str, ...]]:
    """Return the headings before an instruction by language, e.g. "New task from the user"."""
    return {language: tuple(each) for language, each in _load("families.toml")["leads"].items()}


def fill_slots(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its slots, such as `{answer}`, filled. Other braces stay as they are.

    >>> fill_slots('return "{answer}" {}', {"answer": "42"})
    'return "42" {}'
    """
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)


def encode_text(encoding: str, text: str) -> str:
    """Return a text in an encoding that hides its words: base64, zero-width or homoglyphs."""
    encoders: dict[str, Callable[[str], str]] = {
        "base64": lambda each: base64.b64encode(each.encode()).decode(),
        "zero-width": _ZERO_WIDTH.join,
        "homoglyphs": _replace_letters,
    }
    return encoders[encoding](text)


def write_calls(goal: Goal, planted: tuple[str, ...]) -> str:
    """Return example calls that do what a goal wants, in the form of Hermes."""
    search, answer = "search_inbox", "return_final_answer"
    calls: list[tuple[str, dict[str, Any]]]
    if goal == "answer":
        calls = [(answer, {"answer": planted[0], "message_ids": []})]
    elif goal == "cite":
        calls = [(answer, {"answer": "As the message says.", "message_ids": [planted[0]]})]
    else:
        calls = [(search, {"keywords": [word]}) for word in planted]
    written = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in written)


def _replace_letters(text: str) -> str:
    """Replace Latin letters by Cyrillic ones that look the same, except in quotes and ids, which must stay usable."""
    parts = re.split(r'("[^"]*"|<[^>]*>)', text)
    return "".join(part if place % 2 else part.translate(_HOMOGLYPHS) for place, part in enumerate(parts))


@cache
def _load(name: str) -> dict[str, Any]:
    return tomllib.loads((files("gumshoe.synthesis.attacks") / name).read_text(encoding="utf-8"))
