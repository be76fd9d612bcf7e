"""Forms with arguments in JSON."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.rollouts.call_forms.call_form import CallForm, TaggedForm
from gumshoe.rollouts.call_forms.syntax import MAX_HEAD, Scanner, Schemas, UnusableCallError, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm(TaggedForm):
    """Calls as JSON objects with name and arguments: one, several, or a list of them between tags."""

    many: str = ""
    """`list` for a JSON list of calls, `lines` for calls one after another, empty for one call."""
    keys: tuple[str, str, str] = ("name", "arguments", "")
    """Keys of the name, the arguments and the id; the last is empty if calls have no id."""
    gap: str = ""
    """Text after the opening and before the closing tag."""
    follows: str = ""
    """Pattern of what must follow the opening tag, if the tag is a word that turns may have as such."""

    def write(self, calls: Sequence[Call]) -> str:
        objects = [to_json(self._object(index, call)) for index, call in enumerate(calls)]
        if self.many == "list":
            return f"{self.open}{self.gap}[{', '.join(objects)}]{self.gap}{self.close}"
        if self.many == "lines":
            return self.open + self.gap + "\n".join(objects) + self.gap + self.close
        return "\n".join(self.open + self.gap + each + self.gap + self.close for each in objects)

    def _opening(self) -> re.Pattern[str]:
        return (
            re.compile(f"{re.escape(self.open.strip())}(?={self.follows})")
            if self.follows
            else TaggedForm._opening(self)
        )

    def _object(self, index: int, call: Call) -> dict[str, Any]:
        name, arguments, id_key = self.keys
        if not name:
            return {call.name: call.arguments}
        made: dict[str, Any] = {name: call.name, arguments: call.arguments}
        if id_key == "id":
            made["id"] = call.id or f"{index:09}"
        elif id_key:
            made = {id_key: call.id or str(index), **made}
        return made

    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:  # noqa: ARG002 - JSON has types of its own
        values = []
        if self.many == "lines":
            while not scanner.take(self.close.strip()):
                values.append(scanner.json(self.close.strip()))
        else:
            value = scanner.json(self.close.strip())
            values = value if self.many == "list" and isinstance(value, list) else [value]
            if self.many == "list" and not isinstance(value, list):
                raise UnusableCallError("the call is not in a list")
            self._end(scanner)
        if not values:
            raise UnusableCallError("there is no call between the tags")
        return [read_object(value, self.keys) for value in values]


def read_object(value: Any, keys: tuple[str, str, str]) -> Call:
    """Return the call in a JSON value: an object with name and arguments, or `{NAME: ARGUMENTS}` if `keys` are empty.

    Raises:
        UnusableCallError: if the value is something else.
    """
    name_key, arguments_key, id_key = keys
    if not name_key:
        match value:
            case dict() if len(value) == 1 and isinstance(arguments := next(iter(value.values())), dict):
                return Call(str(next(iter(value))), arguments)
        raise UnusableCallError('the call is not {"NAME": {...}}')
    if isinstance(value, dict):
        name, arguments, given = value.get(name_key), value.get(arguments_key), value.get(id_key, "")
        if isinstance(name, str) and name and isinstance(arguments, dict) and isinstance(given, str):
            return Call(name, arguments, given)
    raise UnusableCallError(f'the call is not {{"{name_key}": ..., "{arguments_key}": {{...}}}}')


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedForm(TaggedForm):
    """Calls as a name and a JSON object of arguments, each between tags, in a block of calls if `call` is set."""

    call: tuple[str, str] = ("", "")
    """Tags of each call in a block."""
    middle: str
    """Tag between name and arguments."""
    head: str = r"(?P<name>.+)"
    """Pattern of what is before that tag, with the groups `name` and `id`."""
    written_head: str = "{name}"
    is_id: bool = False
    """True if all of it is the id."""

    def _tags(self) -> tuple[str, ...]:
        return (self.open, self.close, *self.call, self.middle, *self.more_marks)

    def write(self, calls: Sequence[Call]) -> str:
        written = []
        for index, call in enumerate(calls):
            made = self.written_head.format(name=call.name, index=index, id=call.id or f"{index:09}")
            head = call.id if self.is_id and call.id else made
            written.append(f"{head}{self.middle}{to_json(call.arguments)}")
        if self.call[0]:
            return self.open + "".join(self.call[0] + each + self.call[1] for each in written) + self.close
        return "".join(self.open + each + self.close for each in written)

    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:  # noqa: ARG002 - JSON has types of its own
        if not self.call[0]:
            call = self._read_call(scanner, self.close)
            self._end(scanner)
            return [call]
        calls = []
        while not (scanner.take(self.close) if self.close else scanner.at_end()):
            scanner.expect(self.call[0])
            calls.append(self._read_call(scanner, self.call[1]))
            scanner.expect(self.call[1].strip())
        if not calls:
            raise UnusableCallError("there is no call between the tags")
        return calls

    def _read_call(self, scanner: Scanner, close: str) -> Call:
        head = scanner.until(self.middle.strip()).strip()
        found = re.fullmatch(self.head, head) if len(head) <= MAX_HEAD else None
        if not found:
            raise UnusableCallError(f"the call has {head[:40]!r} in place of {self.written_head!r}")
        arguments = scanner.json(close.strip())
        if not isinstance(arguments, dict):
            raise UnusableCallError("the call's arguments are not {...}")
        return Call(found["name"].strip(), arguments, head if self.is_id else found.groupdict().get("id") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaForm(TaggedForm):
    """JSON without tags, as Llama 3 writes it: the calls are the whole turn, or all that follows `<|python_tag|>`."""

    def openings(self) -> tuple[str, ...]:
        return ()  # most calls have no tag, and JSON of a schema may begin like them

    def write(self, calls: Sequence[Call]) -> str:
        return "; ".join(to_json({"name": call.name, "parameters": call.arguments}) for call in calls)

    def _opening(self) -> re.Pattern[str]:
        return _LLAMA_OPENING

    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:  # noqa: ARG002 - JSON has types of its own
        calls = []
        while not scanner.at_end():
            value = scanner.json()
            if isinstance(value, dict) and "parameters" not in value:
                value["parameters"] = value.get("arguments")
            calls.append(read_object(value, ("name", "parameters", "")))
            scanner.take(";")
        if not calls:
            raise UnusableCallError("the call is cut off")
        return calls


_LLAMA_OPENING = re.compile(r'<\|python_tag\|>|\A\s*(?=\{\s*"(?:name"|function"|type"\s*:\s*"function"))')


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientForm(TaggedForm):
    """Messages to recipients, as Functionary 3.2 writes them: `>>>NAME`, a line end, and JSON; `all` is the user.

    The first `>>>` is in the prompt.
    """

    def write(self, calls: Sequence[Call]) -> str:
        return self.open.join(f"{call.name}\n{to_json(call.arguments)}" for call in calls)

    def outside(self, text: str) -> str:
        """Return the text of a turn without its calls."""
        return re.sub(r"(?:\A|>>>)all\n", "", super(RecipientForm, self).outside(text)).strip()

    def _opening(self) -> re.Pattern[str]:
        return _RECIPIENT

    def _read(self, scanner: Scanner, schemas: Schemas) -> list[Call]:  # noqa: ARG002 - JSON has types of its own
        name = scanner.until("\n").strip()
        arguments = scanner.json()
        if not isinstance(arguments, dict):
            raise UnusableCallError("the call's arguments are not {...}")
        self._end(scanner)
        return [Call(name, arguments)]


_RECIPIENT = re.compile(r"(?:\A|>>>)\s*(?=[\w.-]{1,128}[ \t]*\n\s*\{)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmonyForm(CallForm):
    """Messages in channels, as gpt-oss writes them: a call is a message to `functions.NAME`.

    The turn begins after `<|start|>assistant`. The text outside is that of the final channel.
    """

    def write(self, calls: Sequence[Call]) -> str:
        messages = (
            f" to=functions.{call.name}<|channel|>commentary json<|message|>{to_json(call.arguments)}" for call in calls
        )
        return "<|call|><|start|>assistant".join(messages)

    def outside(self, text: str) -> str:
        """Return the text of the final channel, or the whole text if there are no channels."""
        if "<|message|>" not in text:
            return "" if text.lstrip().startswith(("<|channel|>", "to=functions.")) else text.strip()
        scanner, final = Scanner(text), list[str]()
        while scanner.at < len(text):
            start = scanner.at
            if scanner.seek(_HARMONY_BODY) is None:
                break
            header, at = text[start : scanner.at], scanner.at
            scanner.seek(_HARMONY_END)
            end = scanner.at if scanner.at > at else len(text)
            if re.search(r"<\|channel\|>\s*final", header):
                final.append(_HARMONY_END.sub("", text[at:end]))
            scanner.at = end
        return "".join(final).strip()

    def _read_all(self, text: str, schemas: Schemas) -> list[Call]:  # noqa: ARG002 - JSON has types of its own
        scanner, calls = Scanner(text), list[Call]()
        while scanner.at < len(text):
            start = scanner.at
            is_message = scanner.seek(_HARMONY_BODY) is not None
            header = text[start : scanner.at if is_message else len(text)]
            recipient = _HARMONY_RECIPIENT.search(header)
            if not is_message:
                if recipient and ("<|channel|>" in header or header.lstrip().startswith(("to=", "<|start|>"))):
                    raise UnusableCallError("the call is cut off")
                break
            if recipient:
                calls.append(self._read_message(scanner, recipient[1]))
            elif scanner.seek(_HARMONY_END) is None:
                break
        return calls

    def _read_message(self, scanner: Scanner, recipient: str) -> Call:
        name = recipient.removeprefix("functions.")
        if name == recipient or not name:
            raise UnusableCallError(f"the call is to {recipient[:40]!r}, which is not a function")
        arguments = scanner.json()
        if not isinstance(arguments, dict):
            raise UnusableCallError("the call's arguments are not {...}")
        if not scanner.at_end() and not _HARMONY_END.match(scanner.text, scanner.at):
            raise UnusableCallError("there is text after the call")
        scanner.seek(_HARMONY_END)
        return Call(name, arguments)


_HARMONY_BODY = re.compile(r"<\|message\|>")
_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>")
_HARMONY_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
