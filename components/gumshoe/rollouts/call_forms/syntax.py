"""Read the pieces of tool calls from text: tags, JSON, values as plain text, as Python and in Gemma's notation.

Each reader stops at the first mistake, takes time linear in the text, and limits its own depth.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the parameters of each tool, by the tool's name and the parameter's."""

MAX_HEAD = 256
"""Most characters of a name, with what else is in its place."""

MAX_DEPTH = 50
"""Most levels of lists and objects in a value that is not JSON."""

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_PYTHON_STRING = re.compile(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'|\"([^\"\\]*+(?:\\.[^\"\\]*+)*+)\"", re.S)
_PYTHON_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.S)
_PYTHON_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_BARE = re.compile(r"[-+.\w]+")


class UnusableCallError(Exception):
    """Report that a turn has no call that can be used."""


class NoCallError(UnusableCallError):
    """Report that a turn has no call at all."""


@dataclass(slots=True)
class Scanner:
    """A text that is read from left to right."""

    text: str
    at: int = 0
    """Position of the next character."""

    def skip_space(self) -> None:
        """Go on to the next character that is not a space."""
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def at_end(self) -> bool:
        """Return True if only spaces are left."""
        self.skip_space()
        return self.at == len(self.text)

    def take(self, tag: str) -> bool:
        """Go beyond a tag if it is next, spaces before it included, and return True if it was."""
        start = self.at
        self.skip_space()
        if self.text.startswith(tag, self.at):
            self.at += len(tag)
            return True
        self.at = start
        return False

    def expect(self, tag: str) -> None:
        """Go beyond a tag that must be next.

        Raises:
            UnusableCallError: if something else is next, or the text ends.
        """
        if self.take(tag):
            return
        rest = self.text[self.at : self.at + len(tag) + 20].strip()
        if tag.startswith(rest):
            raise UnusableCallError("the call is cut off")
        raise UnusableCallError(f"the call has {rest[:20]!r} in place of {tag!r}")

    def seek(self, pattern: re.Pattern[str]) -> int | None:
        """Move past the next match and return its start, or None if nothing matches."""
        if found := pattern.search(self.text, self.at):
            self.at = found.end()
            return found.start()
        return None

    def until(self, tag: str) -> str:
        """Return the text before the next tag, and go beyond the tag.

        Raises:
            UnusableCallError: if the tag does not follow.
        """
        end = self.text.find(tag, self.at)
        if end < 0:
            raise UnusableCallError("the call is cut off")
        start, self.at = self.at, end + len(tag)
        return self.text[start:end]

    def before(self, *tags: str) -> str:
        """Return the text before the next of several tags, and go on to that tag.

        Raises:
            UnusableCallError: if none of the tags follows.
        """
        found = any_of(tags).search(self.text, self.at)
        if not found:
            raise UnusableCallError("the call is cut off")
        start, self.at = self.at, found.start()
        return self.text[start : self.at]

    def json(self, close: str = "") -> Any:
        """Return the JSON value that is next.

        Args:
            close: Tag that ends the call; without it in the rest of the text, the call is cut off.

        Raises:
            UnusableCallError: if it is not JSON, or is cut off.
        """
        self.skip_space()
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except (ValueError, RecursionError) as error:
            if self._is_cut_off(error, close):
                raise UnusableCallError("the call is cut off") from None
            raise UnusableCallError(f"the call is not JSON ({error})") from None
        return value

    def _is_cut_off(self, error: Exception, close: str) -> bool:
        """Return True if JSON is wrong because the text ends."""
        if close:
            return self.text.find(close, self.at) < 0
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.pos >= len(self.text.rstrip()) or error.msg.startswith("Unterminated string")


@lru_cache(maxsize=256)
def any_of(tags: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches each of the tags (a tuple)."""
    return re.compile("|".join(map(re.escape, tags)))


def to_json(value: Any) -> str:
    """Return a value as JSON, as chat templates write it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def find_schemas(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """Return the schemas of the parameters of tools, from the schemas of the tools."""
    functions = [tool.get("function", tool) for tool in tools]
    return {each["name"]: (each.get("parameters") or {}).get("properties") or {} for each in functions}


def read_plain(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Return the value of an argument that is written as plain text.

    A string is the text itself. Other types are JSON; words and lists may also be written as in Python. Text that is
    not a value of the parameter's type stays text, so that the check of the tool's arguments reports it.

    Example:
        >>> read_plain("5", {"type": "integer"}), read_plain("5", {"type": "string"}), read_plain("V", {"type": "null"})
        (5, '5', 'V')

    Args:
        text: The text of the value.
        schema: JSON schema of the parameter, None if the tool has no such parameter.
    """
    kinds = _find_kinds(schema) if schema is not None else {"string"}
    if kinds == {"string"}:
        return text
    try:
        value = _read_json_or_python(text.strip())
    except (ValueError, RecursionError, UnusableCallError):
        return text
    if isinstance(value, float) and not math.isfinite(value):
        return text
    return value if not kinds or _kinds_of(value) & kinds else text


def _read_json_or_python(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text)
    except ValueError:
        if not text.startswith(("[", "{")):
            raise
    scanner = Scanner(text)
    value = read_python(scanner)
    if not scanner.at_end():
        raise ValueError("there is text after the value")
    return value


def _find_kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema allows, empty if it does not say."""
    kinds = schema.get("type", [])
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= _find_kinds(each)
    if not found:
        found = {kind for value in schema.get("enum", ()) for kind in _kinds_of(value)}
    return found | {"null"} if found and schema.get("nullable") else found


def _kinds_of(value: Any) -> set[str]:
    """Return the JSON types that a value has."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}


def read_python(scanner: Scanner, depth: int = 0) -> Any:
    """Return the Python literal that is next; `true`, `false` and `null` count as Python's words.

    Raises:
        UnusableCallError: if something else is next.
    """
    if depth > MAX_DEPTH:
        raise UnusableCallError("the call has values that are nested too deeply")
    scanner.skip_space()
    match scanner.text[scanner.at : scanner.at + 1]:
        case "":
            raise UnusableCallError("the call is cut off")
        case "'" | '"':
            return _read_python_string(scanner)
        case "[":
            scanner.take("[")
            values = []
            while not scanner.take("]"):
                values.append(read_python(scanner, depth + 1))
                if not scanner.take(","):
                    scanner.expect("]")
                    break
            return values
        case "{":
            scanner.take("{")
            entries = {}
            while not scanner.take("}"):
                scanner.skip_space()
                key = _read_python_string(scanner)
                scanner.expect(":")
                entries[key] = read_python(scanner, depth + 1)
                if not scanner.take(","):
                    scanner.expect("}")
                    break
            return entries
    return read_word(scanner)


def _read_python_string(scanner: Scanner) -> str:
    found = _PYTHON_STRING.match(scanner.text, scanner.at)
    if not found:
        quoted = scanner.text.startswith(("'", '"'), scanner.at)
        raise UnusableCallError("the call is cut off" if quoted else "the call has a key that is not a string")
    scanner.at = found.end()
    try:
        return _PYTHON_ESCAPE.sub(_unescape, found[1] if found[1] is not None else found[2])
    except (ValueError, OverflowError):
        raise UnusableCallError("the call has a string with an escape that is not a character") from None


def _unescape(found: re.Match[str]) -> str:
    if code := found[1] or found[2] or found[3]:
        return chr(int(code, 16))
    return _PYTHON_ESCAPES.get(found[4], found[4] if found[4] in "'\"\\" else found[0])


def read_word(scanner: Scanner) -> Any:
    """Return the number, boolean or null that is next.

    Raises:
        UnusableCallError: if something else is next.
    """
    scanner.skip_space()
    found = _BARE.match(scanner.text, scanner.at)
    if found and found[0] in _WORDS:
        scanner.at = found.end()
        return _WORDS[found[0]]
    try:
        value = json.loads(found[0]) if found else None
    except ValueError:
        value = None
    if not found or value is None:
        if scanner.at_end():
            raise UnusableCallError("the call is cut off")
        raise UnusableCallError(f"the call has {scanner.text[scanner.at : scanner.at + 20]!r}, which is not a value")
    scanner.at = found.end()
    return value


def read_gemma(scanner: Scanner, quote: str, depth: int = 0) -> Any:
    """Return the value that is next in Gemma's notation, e.g. `{n:3,words:[<|"|>a<|"|>]}`.

    Args:
        scanner: The text.
        quote: Tag before and after a string.
        depth: Levels around the value.

    Raises:
        UnusableCallError: if something else is next.
    """
    if depth > MAX_DEPTH:
        raise UnusableCallError("the call has values that are nested too deeply")
    if scanner.take(quote):
        return scanner.until(quote)
    if scanner.take("["):
        values = []
        while not scanner.take("]"):
            values.append(read_gemma(scanner, quote, depth + 1))
            if not scanner.take(","):
                scanner.expect("]")
                break
        return values
    if scanner.take("{"):
        entries = {}
        while not scanner.take("}"):
            key = scanner.until(quote) if scanner.take(quote) else scanner.before(":", "}").strip()
            scanner.expect(":")
            entries[key] = read_gemma(scanner, quote, depth + 1)
            if not scanner.take(","):
                scanner.expect("}")
                break
        return entries
    return read_word(scanner)


def write_gemma(value: Any, quote: str) -> str:
    """Return a value in Gemma's notation."""
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, list):
        return "[" + ",".join(write_gemma(each, quote) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{write_gemma(value[key], quote)}" for key in sorted(value)) + "}"
    return to_json(value)
