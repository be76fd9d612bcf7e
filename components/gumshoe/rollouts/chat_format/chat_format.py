"""Convert conversations to token ids: the prompt, the glue between turns, and the parts of a turn.

Invariant: what was sampled is never rendered or encoded again. A turn consists of the ids that were sampled. Between
two turns there is only glue: the results of the calls in the format of the chat template, and the header of the next
turn.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gumshoe.environments.base import Unusable
from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.rollouts.call_forms import NoCallError, UnusableCallError
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.chat_format.chat_template import derive_template, make_call_id
from gumshoe.rollouts.chat_format.conversation_format import CACHE_SIZE, MAX_CACHED, ConversationFormat
from gumshoe.rollouts.chat_format.escaping import compile_any, escape_matches, escape_strings
from gumshoe.rollouts.chat_format.rendering import TOOL, Renderer, Tokenizer

_PROBES = ("plain", 'two\nlines, "quoted" & <b>', " spaces ", "{}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text and its token ids."""

    text: str
    ids: tuple[int, ...]
    """[tokens]"""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The parts of a turn."""

    calls: tuple[Call, ...] = ()
    """Usable calls, in order; empty if there is a problem."""
    text: str = ""
    """Text outside reasoning and calls."""
    reasoning: str = ""
    problem: Unusable | None = None
    """Kind of problem, if the turn has no usable calls."""
    detail: str = ""
    """Description of the problem, e.g. that a call is not JSON; empty without a problem."""
    begins_with_reasoning: bool = False
    """True if the turn begins with reasoning that is not empty."""
    is_in_reasoning: bool = False
    """True if the turn ends inside reasoning."""


class ChatFormat:
    """Encode conversations with a tokenizer's chat template, after checks that it allows token-exact episodes.

    Raises:
        UsageError: if the template rewrites earlier turns, cannot give back results, or writes calls in a form that
            cannot be read; or if the ids of a turn depend on the text after it. The message names the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, settings: ChatSettings | None = None) -> None:
        self._tokenizer = tokenizer
        tokenizer.backend_tokenizer.no_truncation()  # its file may enable both
        tokenizer.backend_tokenizer.no_padding()
        self.settings = settings or ChatSettings()
        renderer = Renderer(tokenizer, self.settings)
        self.template = derive_template(renderer)
        control, tags = self._list_control(), self.template.tags
        self._control_and_tags = compile_any({*control, tags.opening, tags.closing})
        self.control_tokens = compile_any(control - {tags.opening, tags.closing})  # instructions may name tags
        """Control tokens, and tags of calls and results, but not those of reasoning."""
        # The episodes of a group have the same prompt, and often the same results.
        self._encode_cached = lru_cache(CACHE_SIZE)(self.encode)
        self._render_cached = lru_cache(CACHE_SIZE)(self._render)
        self._glue_cached = lru_cache(CACHE_SIZE)(self._encode_glue)
        self.conversations = ConversationFormat(self)
        """Conversations of any shape."""
        self.end = self.template.stop
        """Text of the token that ends a turn with calls."""
        stops = {text: tokenizer.convert_tokens_to_ids(text) for text in self.template.stops}
        self.stop_ids: tuple[int, ...] = tuple(
            token for text, token in stops.items() if isinstance(token, int) and tokenizer.decode([token]) == text
        )
        """Token ids that end a turn; the first one ends turns with calls."""
        self._stop_texts = {token: self.decode([token]) for token in self.stop_ids}
        if not self.stop_ids or tokenizer.decode([self.stop_ids[0]]) != self.end:
            raise renderer.error(
                "rollouts.no-stop-token",
                f"ends turns with {self.end!r}, which is not a single token of the tokenizer",
            )
        if not self._ends_turns_cleanly():
            raise renderer.error(
                "rollouts.turns-not-separable",
                f"ends turns with {self.end!r}, and turns encoded one by one differ from the whole conversation; use a "
                "tokenizer that encodes control tokens on their own",
            )
        if not self._reads_own_turns():
            raise renderer.error(
                "rollouts.template-no-tool-calls", "writes turns whose calls cannot be read back; use another template"
            )

    def encode_prompt(self, system: str, user: str, tools: list[dict[str, Any]]) -> Encoded:
        """Encode the start of an episode: system prompt, tools, user message, and the header of the first turn."""
        schemas = json.dumps(tools)
        is_short = len(system) + len(user) + len(schemas) <= MAX_CACHED
        return (self._render_cached if is_short else self._render)(system, user, schemas)

    def encode_results(
        self, calls: Sequence[Call], results: Sequence[str], ended_with: int | None = None, earlier: int = 0
    ) -> Encoded:
        """Encode the text between two turns: the results of a turn's calls, and the header of the next turn.

        `ended_with` is the last id of the turn. If it is not the stop token that the template writes there, e.g.
        because the turn was cut off, that token comes first. `earlier` is the number of calls in earlier turns.

        Raises:
            UsageError: if the template cannot render the results of several calls.
        """
        escaped = tuple(map(self.escape_control_tokens, results))
        named = tuple((self.escape_control_tokens(call.name), self.escape_control_tokens(call.id)) for call in calls)
        is_short = sum(map(len, escaped)) + sum(len(name) + len(own) for name, own in named) <= MAX_CACHED
        return (self._glue_cached if is_short else self._encode_glue)(
            named, escaped, ended_with == self.stop_ids[0], earlier if self.template.numbers_calls else 0
        )

    def encode_turn(self, text: str) -> Encoded:
        """Encode a turn that is given as text, with its stop token. Text after a stop token in it is dropped."""
        return self.encode(text.partition(self.end)[0] + self.end)

    def write_turn(self, calls: Sequence[Call], text: str = "") -> str:
        """Return a turn with calls as the model would write it.

        The text is left out if the template cannot write both, or writes it after the calls.
        """
        numbered = [Call(each.name, each.arguments, each.id or make_call_id(at)) for at, each in enumerate(calls)]
        turn = self.template.write_turn(numbered, text)
        if text and calls and (self._read_turn(turn).problem or turn.rstrip().endswith(text.strip())):
            return self.template.write_turn(numbered)
        return turn

    def decode_turn(self, ids: Sequence[int]) -> tuple[str, str]:
        """Return the text of sampled ids [tokens], and the text of the stop token, or "" if they do not end with it.

        A stop token that also closes the call, as Apertus has one, stays in the text.
        """
        stop = self._stop_texts.get(ids[-1], "") if ids else ""
        if not stop or stop in self.template.form.marks:
            return self.decode(ids), ""
        return self.decode(ids[:-1]), stop

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        return str(self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))

    def parse_turn(self, text: str, tools: Sequence[dict[str, Any]], *, before: str = "") -> ParsedTurn:
        """Return the parts of a turn without its stop token. `before` is the text before it, e.g. the prompt.

        Calls inside reasoning are not calls.
        """
        tags, form = self.template.tags, self.template.form
        is_open = tags.is_open(before)
        reasoning, rest, is_closed = tags.split(text, is_open=is_open)
        turn = ParsedTurn(
            text=form.outside(rest).strip(),
            reasoning=reasoning,
            begins_with_reasoning=bool(reasoning) and (is_open or text.lstrip().startswith(tags.opening)),
            is_in_reasoning=not is_closed,
        )
        try:
            calls = tuple(form.parse(rest, tools))
        except NoCallError as error:
            return replace(turn, problem="no call", detail=str(error) if is_closed else "the reasoning does not end")
        except UnusableCallError as error:
            return replace(turn, problem="unparseable call", detail=str(error))
        if len(calls) > 1 and not self.allows_parallel:
            return replace(turn, problem="unparseable call", detail=f"there are {len(calls)} calls in one turn")
        return replace(turn, calls=calls)

    def escape_control_tokens(self, text: str) -> str:
        """Return text without control tokens, so that data cannot end a turn or start another."""
        return escape_matches(text, self._control_and_tags)

    def escape_system(self, text: str) -> str:
        """Return a system prompt without control tokens. It may name the tags of reasoning."""
        return escape_matches(text, self.control_tokens)

    def encode_end_of_reasoning(self) -> Encoded:
        """Encode the text that ends reasoning when the thinking budget is used up."""
        return self._encode_cached(self.template.end_of_reasoning)

    @property
    def allows_parallel(self) -> bool:
        """True if a turn may have several calls."""
        return self.settings.parallel_calls == "allow" and self.template.allows_parallel

    @property
    def drops_reasoning(self) -> bool:
        """True if the reasoning of earlier turns is dropped from the history."""
        return self.settings.reasoning_history == "drop" and self.template.dropped_reasoning is not None

    def drop_reasoning(self, before: Encoded, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids of an earlier turn and of the text before it, without the turn's reasoning.

        What remains of the turn has the ids that were sampled. A turn without reasoning is unchanged.
        """
        tags, opened = self.template.tags, self.template.tags.is_open(before.text)
        text = self.decode(ids)
        reasoning, _, is_closed = tags.split(text, is_open=opened)
        if not (reasoning or opened) or not is_closed:
            return (*before.ids, *ids)
        end = bisect_left(range(len(ids)), True, key=lambda at: tags.closing in self.decode(ids[:at]))
        tail = self.decode(ids[:end]).partition(tags.closing)[2].lstrip()  # the closing tag may be part of a token
        while not tail and end < len(ids) and self.decode(ids[end : end + 1]).isspace():
            end += 1
        head = before.ids
        if opened:
            kept = next(at for at in range(len(head), -1, -1) if tags.opening in self.decode(head[at:]))
            head = head[:kept]
        rest = self.encode((self.template.dropped_reasoning or "") + tail).ids
        return (*head, *rest, *ids[end:])

    def _list_control(self) -> set[str]:
        """Return what external text must not contain: control tokens, and tags of calls and results.

        Some tokenizers add ordinary words and runs of spaces as tokens; these are not control tokens.
        """
        added = [str(token) for token in self._tokenizer.added_tokens_decoder.values()]
        control = {token for token in added if len(token) > 2 and not re.search(r"\s", token) and not token.isalnum()}
        glue = self.template.render_results([Call("look", {}, make_call_id(0))], ["x"])
        return {*control, *self.template.form.marks, *re.findall(r"</?\w+>", glue)}

    def _render(self, system: str, user: str, tools: str) -> Encoded:
        messages = self.template.style.start(self.escape_system(system), self.escape_control_tokens(user))
        schemas = escape_strings(json.loads(tools), self.escape_system)
        text = self.template.render(messages, schemas, header=True)
        first, end, rest = text.partition(self.end)  # system prompt and tools are most of it, and often the same
        if not end:
            return self.encode(text)
        encode = self._encode_cached if len(first) <= MAX_CACHED else self.encode
        return Encoded(text, (*encode(first + end).ids, *self.encode_after_stop(rest).ids))

    def _encode_glue(
        self, calls: tuple[tuple[str, str], ...], results: tuple[str, ...], is_ended: bool, earlier: int
    ) -> Encoded:
        numbered = [
            Call(name or "look", {}, given or make_call_id(at)) for at, (name, given) in enumerate(calls, earlier)
        ]
        try:
            text = self.template.render_results(numbered, results, earlier)
        except UsageError:  # Mistral's templates accept only ids of nine characters, whatever the model wrote
            numbered = [replace(call, id=make_call_id(at)) for at, call in enumerate(numbered, earlier)]
            text = self.template.render_results(numbered, results, earlier)
        if is_ended:
            return self.encode_after_stop(text)
        return self.encode(self.end + text)

    def encode_after_stop(self, text: str, stop: str = "") -> Encoded:
        """Encode text after a stop token, by default the one that ends turns with calls.

        Some tokenizers encode the beginning of a text in another way.
        """
        return Encoded(text, self.encode((stop or self.end) + text).ids[1:])

    def encode(self, text: str) -> Encoded:
        """Encode a text, with the control tokens in it."""
        # The batch call releases the GIL; without offsets it takes half the time.
        found = self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return Encoded(text, tuple(found[0].ids))

    def _ends_turns_cleanly(self) -> bool:
        """Return True if the ids after a stop token do not depend on the text before it."""
        calls = [Call("look", {"word": "x"}, make_call_id(0))]
        turn = self.encode_turn(self.write_turn(calls))
        for probe in _PROBES:
            glue = self.encode_results(calls, [probe], turn.ids[-1])
            whole = self.encode(turn.text + glue.text)
            if whole.ids[-len(glue.ids) - 1 :] != (self.stop_ids[0], *glue.ids):
                return False
        return True

    def _reads_own_turns(self) -> bool:
        """Return True if the call in a turn that the template writes is read again."""
        turn = self._read_turn(self.write_turn([Call("look", {"word": "x"})]))
        return [(call.name, call.arguments) for call in turn.calls] == [("look", {"word": "x"})]

    def _read_turn(self, text: str) -> ParsedTurn:
        """Return the parts of a turn that was written as text, as they are read from its ids."""
        return self.parse_turn(self.decode_turn(self.encode_turn(text).ids)[0], [TOOL], before=self.template.header)
