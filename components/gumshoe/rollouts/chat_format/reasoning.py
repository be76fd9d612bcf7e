"""Reasoning in a turn: text between tags, before or between the parts that count."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around reasoning.

    >>> ReasoningTags("<think>", "</think>").split("<think>Hm.</think>Yes.")
    ('Hm.', 'Yes.', True)
    """

    opening: str
    closing: str

    def is_open(self, text: str) -> bool:
        """Return True if a turn after this text begins inside reasoning."""
        return text.rstrip().endswith(self.opening.rstrip())

    def split(self, text: str, *, is_open: bool = False) -> tuple[str, str, bool]:
        """Return the reasoning in a turn, the rest of the turn, and True if all reasoning is closed.

        With `is_open`, the turn begins inside reasoning, because the text before it ends with the opening tag. A turn
        may also begin with the closing tag alone, which stands for no reasoning.
        """
        is_open = is_open or text.lstrip().startswith(self.closing)
        reasoning, rest, position = list[str](), list[str](), 0
        while True:
            if not is_open:
                start = text.find(self.opening, position)
                if start < 0:
                    return "\n".join(reasoning), "".join([*rest, text[position:]]), True
                rest.append(text[position:start])
                position = start + len(self.opening)
            end = text.find(self.closing, position)
            if end < 0:
                reasoning.append(text[position:].strip())
                return "\n".join(reasoning), "".join(rest), False
            reasoning.append(text[position:end].strip())
            position, is_open = end + len(self.closing), False


_NAMED = re.compile(r"<((?:[\w-]+:)?think(?:ing)?(?::\w+)?)>")
THINK = ReasoningTags("<think>", "</think>")
HARMONY = ReasoningTags("<|channel|>analysis<|message|>", "<|end|>")
_KNOWN_TAGS = (
    ReasoningTags("<|channel>thought", "<channel|>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningTags("<thought>", "</thought>"),
    ReasoningTags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)
"""Tags of model families that are not named like `<think>`."""


def find_tags(text: str) -> ReasoningTags:
    """Return the tags around reasoning in a chat template or a prompt, `<think>` and `</think>` if it has none."""
    named = _NAMED.search(text)
    other = ReasoningTags(f"<{named[1]}>", f"</{named[1]}>") if named else THINK
    if HARMONY.opening in text:
        return HARMONY
    return next((tags for tags in _KNOWN_TAGS if tags.opening in text or tags.closing in text), other)
