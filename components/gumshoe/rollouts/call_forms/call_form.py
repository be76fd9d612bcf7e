"""A form of tool calls: read the calls of a turn, and write calls."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.rollouts.call_forms.syntax import (
    NoCallError,
    Scanner,
    Schemas,
    UnusableCallError,
    any_of,
    find_schemas,
    to_json,
)

_MARK = re.compile(r"\]<\]\w+\[>\[|</?[^<>\s]{2,}>?|\[/?[A-Z_]{3,}\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm(ABC):
    """A form in which models write tool calls."""

    name: str
    open: str
    """Tag that begins a call, or a block of calls."""
    close: str = ""
    """Tag that ends it; empty if the turn's end does."""
    more_marks: tuple[str, ...] = ()
    has_headers: bool = False
    """True if each turn begins with a header, which says if a call or text follows."""
    noise: str = ""
    """Pattern of what is neither a call nor text, e.g. headers of channels."""
    hints: tuple[str, ...] = ()
    """Texts in a prompt with tools that show this form, for templates that write no calls; empty: its marks show it."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Tags of the form that external text must not contain."""
        return tuple(dict.fromkeys(mark for tags in self._tags() for mark in _MARK.findall(tags)))

    def _tags(self) -> tuple[str, ...]:
        return (self.open, self.close, *self.more_marks)

    def openings(self) -> tuple[str, ...]:
        """Return the texts with which a turn that is a call begins; empty if text may begin in the same way."""
        return (self.open,) if self.open and not self.has_headers else ()

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]]) -> list[Call]:
        """Return the calls in a turn, in order.

        Args:
            text: The turn, without its reasoning and without its stop token.
            tools: JSON schemas of the tools, for forms that write values as plain text.

        Raises:
            NoCallError: if there is no call.
            UnusableCallError: if a call is cut off, or is not as the form has it.
        """
        calls = self._read_all(text, find_schemas(tools))
        if not calls:
            raise NoCallError("there is no tool call in it")
        for call in calls:
            check_call(call)
        return calls

    @abstractmethod
    def write(self, calls: Sequence[Call]) -> str:
        """Return the text of calls."""

    @abstractmethod
    def outside(self, text: str) -> str:
        """Return the text of a turn without its calls."""

    @abstractmethod
    def _read_all(self, text: str, schemas: Schemas) -> list[Call]:
        """Return the calls in a turn, in order; empty without calls.

        Raises:
            UnusableCallError: if a call is cut off, or is not as the form has it.
        """


class TaggedForm(CallForm):
    """A form whose calls, or blocks of calls, begin with a tag that can be searched for."""

    def outside(self, text: str) -> str:
        """Return the text of a turn without its calls."""
        scanner, kept, at = Scanner(text), [], 0
        while (start := scanner.seek(self._opening())) is not None:
            kept.append(text[at:start])
            try:
                self._read(scanner, {})
            except UnusableCallError:
                at = len(text)
                break
            at = scanner.at
        rest = "".join([*kept, text[at:]])
        return (re.sub(self.noise, "", rest) if self.noise else rest).strip()

    def _read_all(self, text: str, schemas: Schemas) -> list[Call]:
        scanner, calls = Scanner(text), list[Call]()
        while scanner.seek(self._opening()) is not None:
            calls += self._read(scanner, schemas)
        return calls

    def _opening(self) -> re.Pattern[str]:
        return any_of((self.open.strip(),))

    @abstractmethod
    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:
        """Read a call, or a block of calls, whose opening tag was read, with its closing tag."""

    def _end(self, scanner: Scanner) -> None:
        """Read the closing tag; without one, the turn must end, or another call must begin."""
        if self.close:
            scanner.expect(self.close.strip())
        elif not scanner.at_end() and not scanner.text.startswith(self.open.strip(), scanner.at):
            raise UnusableCallError("there is text after the call")


def check_call(call: Call) -> None:
    """Check that a call can be written as JSON in Unicode.

    Raises:
        UnusableCallError: if it has infinite numbers, half a code point, or too many levels.
    """
    try:
        to_json([call.name, call.arguments, call.id]).encode()
    except (ValueError, RecursionError) as error:
        raise UnusableCallError(f"the call is not JSON ({error})") from None
