"""Redact recorded episodes and feedback: every text in them, wherever it stands, instead of a list of fields.

Only three kinds of text stay as they are: words of this format, such as the reasons why an episode ends; ids that the
server derives from hashes; and the inbox and the collections of feedback, which say who may read it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

from gumshoe.environments.base import Ending, Event
from gumshoe.environments.tools import Call
from gumshoe.rollouts.trajectory import Origin, Trajectory
from gumshoe.scenarios.scenario import Consent, Scenario

REDACTED = "[redacted]"
_WORDS = frozenset(map(str, (*get_args(Ending), *get_args(Event), *get_args(Origin), *get_args(Consent))))
_OWN_ID = re.compile(r"asked-[0-9a-f]{16}(-[0-9a-f]{8})?|[0-9a-f]{16}")
_ID_FIELDS = ("id", "scenario", "given_by")
_KEPT_FIELDS = ("inbox_address", "collections", "query_date")


class RecordRedactor:
    """Replace the text that regular expressions match. Without expressions, records stay as they are."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [re.compile(each) for each in patterns]

    def redact_text(self, text: str) -> str:
        """Return a text without what the expressions match."""
        for each in self._patterns:
            text = each.sub(REDACTED, text)
        return text

    def write_trajectory(self, trajectory: Trajectory) -> str:
        """Return a line with the redacted trajectory. It has no token ids, which would reveal the text."""
        if not self._patterns:
            return trajectory.to_json()
        spans = [replace(each, ids=(), logprobs=(), segment=0) for each in trajectory.spans]
        document = self._redact(replace(trajectory, spans=spans, segments=[]))
        line = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return line.encode(errors="replace").decode()

    def redact_scenario(self, scenario: Scenario) -> Scenario | None:
        """Return a scenario without redacted text, or None if one of its sources would be redacted.

        A question without the ids of its sources cannot be used.
        """
        given = scenario.model_dump(exclude_none=True)
        found = {name: value if name in _KEPT_FIELDS else self._redact(value, name) for name, value in given.items()}
        if any(list(given[name]) != list(found[name]) for name in ("message_ids", "document_ids")):
            return None
        if scenario.unanswerable:
            found["answer"] = scenario.answer  # words of this format
        return Scenario.model_validate(found)

    def _redact(self, value: Any, name: str = "", *, is_free: bool = False) -> Any:
        """Return a value as it is written to JSON. In free values, which a model chose, numbers are text too."""
        if isinstance(value, str):
            is_own = value in _WORDS or (name in _ID_FIELDS and _OWN_ID.fullmatch(value) is not None)
            return value if is_own else self.redact_text(value)
        if is_dataclass(value):
            is_free = isinstance(value, Call)
            return {
                each.name: self._redact(getattr(value, each.name), each.name, is_free=is_free) for each in fields(value)
            }
        if isinstance(value, Mapping):
            return {self.redact_text(str(key)): self._redact(each, is_free=is_free) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._redact(each, is_free=is_free) for each in value]
        if is_free and isinstance(value, int | float) and not isinstance(value, bool):
            text = json.dumps(value)
            return value if self.redact_text(text) == text else REDACTED
        return value
