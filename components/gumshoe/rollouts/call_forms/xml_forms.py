"""Forms with one tag per argument, and values as plain text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.rollouts.call_forms.call_form import TaggedForm
from gumshoe.rollouts.call_forms.syntax import (
    MAX_DEPTH,
    MAX_HEAD,
    Scanner,
    Schemas,
    UnusableCallError,
    any_of,
    read_plain,
    to_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlForm(TaggedForm):
    """Calls in tags like those of XML, with values as plain text, of the types in the tool's schema."""

    is_block: bool = True
    """False if each call has opening and closing tag of its own; those of `call` are then in them."""
    call: tuple[str, str, str]
    """Tags before the name, after it, and at the call's end. Empty after the name: the next tag ends it."""
    argument: tuple[str, str, str]
    """Tags before the key, after it, and after the value."""
    value: str = ""
    """Tag before the value, if it is not the one after the key."""
    call_head: tuple[str, str] = (r"(?P<name>.+)", "{name}")
    """Pattern of what is between the first two tags of a call, and how it is written."""
    argument_head: tuple[str, str] = (r"(?P<key>.+)", "{key}")
    """The same of an argument. A group `type` says if the value is text (`true`, `string`) or JSON."""
    gap: str = ""
    """Text before and after a value."""
    line: str = "\n"
    """Text between the tags of calls and arguments."""

    def _tags(self) -> tuple[str, ...]:
        return (self.open, self.close, *self.call, *self.argument, self.value, *self.more_marks)

    def openings(self) -> tuple[str, ...]:
        return () if self.has_headers else (self.open or self.call[0],)

    def write(self, calls: Sequence[Call]) -> str:
        written = [self._write_call(index, call) for index, call in enumerate(calls, 1)]
        if not self.open:
            return self.line.join(written)
        if self.is_block:
            return self.line.join([self.open, *written, self.close])
        return self.line.join(self.line.join([self.open, each, self.close]) for each in written)

    def _write_call(self, index: int, call: Call) -> str:
        begin, middle, end = self.call
        head = begin + self.call_head[1].format(name=call.name, index=index) + middle
        arguments = [self._write_argument(key, value) for key, value in call.arguments.items()]
        return self.line.join([head, *arguments, end])

    def _write_argument(self, key: str, value: Any) -> str:
        begin, middle, end = self.argument
        is_text = isinstance(value, str)
        head = self.argument_head[1].format(key=key, bool="true" if is_text else "false", type=_type_name(value))
        text = value if is_text else to_json(value)
        opening = middle + (self.line + self.value if self.value else "")
        return begin + head + opening + self.gap + text + self.gap + end

    def _opening(self) -> re.Pattern[str]:
        return any_of((self.open or self.call[0],))

    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:
        if not self.open:
            return [self._read_call(scanner, schemas)]
        calls = []
        while not scanner.take(self.close):
            scanner.expect(self.call[0])
            calls.append(self._read_call(scanner, schemas))
        if not calls:
            raise UnusableCallError("there is no call between the tags")
        return calls

    def _read_call(self, scanner: Scanner, schemas: Schemas) -> Call:
        _, middle, end = self.call
        head = scanner.until(middle) if middle else scanner.before(self.argument[0], end)
        name, arguments = self._match(self.call_head, head.strip())["name"], dict[str, Any]()
        while not scanner.take(end):
            scanner.expect(self.argument[0])
            found = self._match(self.argument_head, scanner.until(self.argument[1]))
            if self.value:
                scanner.expect(self.value)
            arguments[found["key"]] = self._read_value(scanner, found, schemas.get(name, {}).get(found["key"]))
        return Call(name, arguments)

    def _match(self, head: tuple[str, str], text: str) -> dict[str, str]:
        found = re.fullmatch(head[0], text) if len(text) <= MAX_HEAD else None
        if not found:
            raise UnusableCallError(f"the call has {text[:40]!r} in place of a name")
        return found.groupdict()

    def _read_value(self, scanner: Scanner, found: Mapping[str, str], schema: Mapping[str, Any] | None) -> Any:
        end = self.argument[2]
        if scanner.text.startswith("<![CDATA[", scanner.at):
            scanner.take("<![CDATA[")
            text = scanner.until("]]>")
            scanner.expect(end)
            return text
        text = scanner.until(end)
        if self.gap:
            text = text.removeprefix(self.gap).removesuffix(self.gap)
        if "type" not in found:
            return read_plain(text, schema)
        if found["type"] in ("true", "string"):
            return text
        inner = Scanner(text + end)
        value = inner.json(end)
        inner.expect(end)
        return value


def _type_name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementForm(TaggedForm):
    """Calls in elements named after arguments, as MiniMax M3 writes them: lists have `<item>`, objects their keys.

    Each tag has a mark before it. An argument that is null is left out, as the template leaves it out.
    """

    mark: str

    def write(self, calls: Sequence[Call]) -> str:
        written = [
            f'{self.mark}<invoke name="{call.name}">{self._write(call.arguments)}{self.mark}</invoke>' for call in calls
        ]
        return "\n".join([self.open, *written, self.close])

    def _write(self, value: Any) -> str:
        if isinstance(value, list):
            return "".join(f"{self.mark}<item>{self._write(each)}{self.mark}</item>" for each in value)
        if isinstance(value, dict):
            entries = ((key, self._write(each)) for key, each in value.items() if each is not None)
            return "".join(f"{self.mark}<{key}>{text}{self.mark}</{key}>" for key, text in entries)
        return value if isinstance(value, str) else to_json(value)

    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:
        calls = []
        while not scanner.take(self.close):
            scanner.expect(f'{self.mark}<invoke name="')
            name = scanner.until('">')
            arguments = self._read_entries(scanner, schemas.get(name, {}), "invoke", 0)
            if not name or len(name) > MAX_HEAD:
                raise UnusableCallError("the call has no name")
            calls.append(Call(name, arguments))
        if not calls:
            raise UnusableCallError("there is no call between the tags")
        return calls

    def _read_entries(self, scanner: Scanner, schemas: Mapping[str, Any], tag: str, depth: int) -> dict[str, Any]:
        """Return the elements up to the closing tag."""
        entries = {}
        while not scanner.take(f"{self.mark}</{tag}>"):
            key = self._read_tag(scanner)
            entries[key] = self._read_value(scanner, schemas.get(key), key, depth + 1)
        return entries

    def _read_tag(self, scanner: Scanner) -> str:
        scanner.expect(f"{self.mark}<")
        key = scanner.until(">")
        if not key or len(key) > MAX_HEAD or key.startswith("/"):
            raise UnusableCallError(f"the call has {key[:40]!r} in place of a name")
        return key

    def _read_value(self, scanner: Scanner, schema: Mapping[str, Any] | None, tag: str, depth: int) -> Any:
        """Return the value of an element, and go beyond its closing tag."""
        if depth > MAX_DEPTH:
            raise UnusableCallError("the call has values that are nested too deeply")
        kind, start = (schema or {}).get("type"), scanner.at
        text = scanner.before(self.mark)
        has_elements = not text.strip() and not scanner.text.startswith(f"{self.mark}</", scanner.at)
        if not has_elements and not (kind in ("array", "object") and not text.strip()):
            scanner.expect(f"{self.mark}</{tag}>")
            return read_plain(text, schema)
        if kind == "array":
            items, values = (schema or {}).get("items"), list[Any]()
            while not scanner.take(f"{self.mark}</{tag}>"):
                scanner.expect(f"{self.mark}<item>")
                values.append(self._read_value(scanner, items, "item", depth + 1))
            return values
        scanner.at = start
        return self._read_entries(scanner, (schema or {}).get("properties") or {}, tag, depth)
