"""Forms that write calls like code: in Python, and in Gemma's notation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.rollouts.call_forms.call_form import TaggedForm
from gumshoe.rollouts.call_forms.syntax import (
    MAX_HEAD,
    Scanner,
    Schemas,
    UnusableCallError,
    read_gemma,
    read_python,
    write_gemma,
)

_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaForm(TaggedForm):
    """Calls in Gemma's notation, e.g. `<|tool_call>call:look{n:3,word:<|"|>a<|"|>}<tool_call|>`."""

    quote: str
    """Tag before and after a string."""

    def write(self, calls: Sequence[Call]) -> str:
        return "".join(f"{self.open}{call.name}{write_gemma(call.arguments, self.quote)}{self.close}" for call in calls)

    def _tags(self) -> tuple[str, ...]:
        return (self.open, self.close, self.quote)

    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:  # noqa: ARG002 - values show their types
        name = scanner.before("{", self.close).strip()
        arguments = read_gemma(scanner, self.quote)
        if not isinstance(arguments, dict) or not name or len(name) > MAX_HEAD:
            raise UnusableCallError("the call is not NAME{KEY:VALUE,...}")
        self._end(scanner)
        return [Call(name, arguments)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonForm(TaggedForm):
    """Calls as in Python, e.g. `[look(word="a", n=3), look(word="b")]`, or one on each line.

    Without tags, the calls are the whole turn.
    """

    is_list: bool = True
    """True if the calls are a list, False if each has a line of its own."""

    def write(self, calls: Sequence[Call]) -> str:
        written = [
            f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})" for call in calls
        ]
        if self.is_list:
            return f"{self.open}[{', '.join(written)}]{self.close}"
        return "\n".join([self.open, *written, self.close])

    def _opening(self) -> re.Pattern[str]:
        return TaggedForm._opening(self) if self.open else _BARE_OPENING

    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:  # noqa: ARG002 - values show their types
        end, calls = "]" if self.is_list else self.close, list[Call]()
        if self.is_list:
            scanner.expect("[")
        while not scanner.take(end):
            calls.append(_read_python_call(scanner))
            scanner.take(",")
        if not calls:
            raise UnusableCallError("there is no call between the tags")
        if self.is_list:
            self._end(scanner)
        return calls

    def _end(self, scanner: Scanner) -> None:
        if self.close:
            scanner.expect(self.close)
        elif not scanner.at_end():
            raise UnusableCallError("there is text after the call")


_BARE_OPENING = re.compile(r"\A\s*(?=\[\s*[A-Za-z_][\w.-]{0,128}\()")


def _read_python_call(scanner: Scanner) -> Call:
    found = _NAME.match(scanner.text, scanner.at)
    if not found:
        rest = scanner.text[scanner.at : scanner.at + MAX_HEAD].strip()
        is_cut_off = not rest or re.fullmatch(r"[A-Za-z_][\w.-]*", rest)
        raise UnusableCallError(
            "the call is cut off" if is_cut_off else f"the call has {rest[:20]!r} in place of a call"
        )
    scanner.at = found.end()
    arguments = dict[str, Any]()
    while not scanner.take(")"):
        key = _KEY.match(scanner.text, scanner.at)
        if not key:
            if re.fullmatch(r"\w*", scanner.text[scanner.at : scanner.at + MAX_HEAD].strip()):
                raise UnusableCallError("the call is cut off")
            raise UnusableCallError("the call has an argument without a name")
        scanner.at = key.end()
        arguments[key[1]] = read_python(scanner)
        if not scanner.take(","):
            scanner.expect(")")
            break
    return Call(found[1], arguments)
