"""Derive from a chat template how it writes turns, reasoning, calls and results.

Nothing about a family is assumed: each property is read off renderings of small conversations and then checked on
others. A conversation has one question, followed by turns with calls and their results.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.rollouts.call_forms import FORMS, CallForm, NoCallError, UnusableCallError
from gumshoe.rollouts.chat_format.reasoning import ReasoningTags, find_tags
from gumshoe.rollouts.chat_format.rendering import STYLES, TOOL, MessageStyle, Renderer, RenderingError

SYSTEM_MARK, QUESTION_MARK, TURN_MARK = "mark5system", "mark5question", "mark5last"
"""System prompt, question, and the end of the last turn in the conversations from which a format is derived."""
_RESULTS = ("mark5result1", "mark5result2")
_THOUGHT = "mark5thought"
_OTHER_STOPS = ("<|eom_id|>", "<|return|>", "<|observation|>", "<|user|>")  # end turns wherever they are tokens
_PIECE = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|\s+|[^\s<\[]+|.")
_PROBES = (
    Call("look", {"word": 'a "b" & é, {c}', "count": 3, "exact": True, "tags": ["x", "y z"]}),
    Call("look", {"word": TURN_MARK}),
)


class ChatTemplate:
    """A chat template, a way to give messages to it, and what follows from both.

    Raises:
        RenderingError: if it cannot render turns with calls and results.
        UsageError: if it rewrites the history, or does not end turns with a token.
    """

    def __init__(self, renderer: Renderer, style: MessageStyle, form: CallForm) -> None:
        self._renderer, self.style, self.form = renderer, style, form
        self.name, self.error = renderer.name, renderer.error
        self._known_tags = find_tags(renderer.source + self._render(self.start, header=True))
        self.numbers_calls = False
        """True if the template numbers the calls of a conversation, as Cohere's do."""
        self._check_history()

    def render_results(self, calls: Sequence[Call], results: Sequence[str], earlier: int = 0) -> str:
        """Return the text after the stop token of a turn with these calls: the results and the next turn's header.

        `earlier` is the number of calls in earlier turns; it matters for templates that number calls.

        Raises:
            UsageError: if the template cannot render the results of several calls.
        """
        text = self.render(self.compose_following(calls, results, earlier=earlier), [TOOL], header=True)
        end = self._find_stop(text)
        if end is None:
            raise self.error("rollouts.no-stop-token", "ends a turn differently depending on the results after it")
        return text[end[1] :]

    def compose_following(
        self, calls: Sequence[Call], results: Sequence[str], others: Sequence[dict[str, Any]] = (), earlier: int = 0
    ) -> list[dict[str, Any]]:
        """Return a conversation with one turn, the results of its calls, and other messages after them.

        The last argument of the turn is `TURN_MARK`; a turn without calls is that text. `earlier` is the number of
        calls in earlier turns, which are part of the conversation if the template numbers calls.
        """
        messages = list(self.start)
        for place in range(earlier if self.numbers_calls else 0):
            messages += self._exchange([Call("look", {"word": "x"}, make_call_id(place))], ["x"])
        words = ["x"] * (len(calls) - 1) + [TURN_MARK] if calls else []
        given = [Call(call.name, {"word": word}, call.id) for call, word in zip(calls, words, strict=True)]
        return [*messages, *self._exchange(given, results, "" if calls else TURN_MARK), *others]

    def write_turn(self, calls: Sequence[Call], text: str = "", thought: str = "") -> str:
        """Return a turn as the model would write it, without its stop token."""
        rendered = self.render([*self.start, self.style.turn(calls, text, thought)], [TOOL], header=False)
        begin = rendered.index(QUESTION_MARK) + len(QUESTION_MARK)
        turn = _strip_header(rendered[begin:], self.header).rstrip()
        turn = turn.removesuffix(max((stop for stop in self.stops if turn.endswith(stop)), key=len, default=""))
        opened, closing = self.tags.is_open(self.header), self.tags.closing
        if self.header.rstrip().endswith(closing) and turn.lstrip().startswith(closing):
            return turn.lstrip().removeprefix(closing)  # the prompt closed reasoning
        if opened and not rendered[begin:].startswith(self.header.rstrip()) and not turn.lstrip().startswith(closing):
            turn = f"{closing}\n\n{turn}"  # the prompt opened reasoning, and the turn has none
        return turn

    def render(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]], *, header: bool) -> str:
        """Return a conversation as text, with the header of the next turn if `header` is set.

        Raises:
            UsageError: if the template raises an error.
        """
        try:
            return self._renderer.render(messages, tools, header=header)
        except RenderingError as error:
            raise self.error("rollouts.template-render-failed", f"cannot render a conversation: {error}") from None

    def _render(self, messages: Sequence[dict[str, Any]], *, header: bool) -> str:
        return self._renderer.render(messages, [TOOL], header=header)

    def _exchange(self, calls: Sequence[Call], results: Sequence[str], text: str = "", thought: str = "") -> list[Any]:
        """Return the messages of a turn with calls and of their results."""
        return [self.style.turn(calls, text, thought), *self.style.results(calls, results)]

    # Derived from renderings.

    @cached_property
    def start(self) -> list[dict[str, Any]]:
        """The messages of a prompt, with marks as texts."""
        return self.style.start(SYSTEM_MARK, QUESTION_MARK)

    @cached_property
    def header(self) -> str:
        """Text between a question and the turn after it, e.g. `<|im_end|>\\n<|im_start|>assistant\\n<think>\\n`."""
        return self._render(self.start, header=True).partition(QUESTION_MARK)[2]

    @cached_property
    def stop(self) -> str:
        """Text of the token that ends a turn with calls, e.g. `<|im_end|>`."""
        text = self._render_conversation(1)
        after = text[text.index(TURN_MARK) : text.index(_RESULTS[0])]
        tokens = [token for _, token in _find_tokens(after, self._renderer.tokens)]
        tags = self._known_tags
        inside = {*self.form.marks, tags.opening, tags.closing}
        outside = [token for token in tokens if token not in inside]
        if not tokens:
            raise self.error(
                "rollouts.no-stop-token",
                "does not end a turn with a token of the tokenizer; use a tokenizer that has the template's tokens",
            )
        return outside[0] if outside else tokens[-1]

    @cached_property
    def _call(self) -> str:
        """A turn with one call, as the template renders it, without empty reasoning and without the stop token."""
        return self._extract_call(self._render_conversation(1))

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """Texts of all tokens that end a turn: after calls, after text, the tokenizer's own, and those of families."""
        found = [self.stop, *self.stops_after_text[:1]]
        found += [self._renderer.end_of_text] if self._renderer.end_of_text else []
        found += [token for token in _OTHER_STOPS if token in self._renderer.tokens]
        return tuple(dict.fromkeys(token for token in found if token == self.stop or token not in self.tags.closing))

    @cached_property
    def stops_after_text(self) -> tuple[str, ...]:
        """Texts of the tokens that end a turn of text: before a question, and as the last message if that is another.

        It is empty if the template expects calls.
        """
        question = {"role": "user", "content": _RESULTS[0]}
        inside, found = set(self.form.marks), list[str]()
        if self.header.endswith(self.tags.closing):  # reasoning is a message of its own, and ends like any other
            inside -= {token for _, token in _find_tokens(self.tags.closing, self._renderer.tokens)}
        for others in ([question], []):
            try:
                text = self._render(self.compose_following((), (), others), header=False)
                after = text[text.index(TURN_MARK) + len(TURN_MARK) :].partition(_RESULTS[0])[0]
            except (RenderingError, ValueError):
                return ()
            found += [token for _, token in _find_tokens(after, self._renderer.tokens - inside)][:1]
        return tuple(dict.fromkeys(found))

    @cached_property
    def tags(self) -> ReasoningTags:
        """The tags around reasoning."""
        known = self._known_tags
        try:
            text = self._render_conversation(1, thoughts=(_THOUGHT,))
        except RenderingError:
            return known
        before, found, after = text.partition(_THOUGHT)
        if not found or self._call not in after:
            return known
        opening = _strip_header(before[before.index(QUESTION_MARK) + len(QUESTION_MARK) :], self.header).strip()
        closing = after.partition(self._call)[0].strip()
        if closing == known.closing and known.opening in before:
            return known
        if not opening and self.header.strip():
            opening = _PIECE.findall(self.header.strip())[-1]
        return ReasoningTags(opening, closing) if opening and closing and opening != closing else known

    @cached_property
    def end_of_reasoning(self) -> str:
        """Text between reasoning and a call, e.g. `\\n</think>\\n\\n`."""
        usual = f"\n{self.tags.closing}\n\n"
        try:
            after = self._render_conversation(1, thoughts=(_THOUGHT,)).partition(_THOUGHT)[2]
        except RenderingError:
            return usual
        ending, found, _ = after.partition(self._call)
        return ending.rstrip(" ") if found and self.tags.closing in ending else usual

    @cached_property
    def dropped_reasoning(self) -> str | None:
        """Text that replaces the reasoning of earlier turns, e.g. "" or `<think></think>`; None if it is kept."""
        thoughts = (_THOUGHT + "1", _THOUGHT + "2")
        for as_text in (False, True):
            try:
                whole = self._render_conversation(2, thoughts, as_text=as_text)
            except RenderingError:
                continue
            call = self._call.replace(TURN_MARK, "first")
            if thoughts[1] in whole and thoughts[0] not in whole and call in whole:
                before = whole[whole.index(QUESTION_MARK) + len(QUESTION_MARK) : whole.index(call)]
                header, opening = self.header, self.tags.opening
                return _strip_header(
                    before, header.rstrip().removesuffix(opening) if self.tags.is_open(header) else header
                )
        return None

    @cached_property
    def allows_parallel(self) -> bool:
        """True if the template can render several calls in one turn, and the form reads them."""
        calls = (Call("look", {"word": "one"}, make_call_id(0)), Call("look", {"word": TURN_MARK}, make_call_id(1)))
        try:
            text = self._render([*self.start, *self._exchange(calls, _RESULTS)], header=True)
            return self._reads(self._extract_call(text), calls) and all(each in text for each in _RESULTS)
        except (RenderingError, ValueError):
            return False

    def _render_conversation(self, turns: int, thoughts: Sequence[str] = (), *, as_text: bool = False) -> str:
        """Return a conversation of some turns, each with one call and one result, and optional reasoning."""
        messages = list(self.start)
        for place in range(turns):
            call = Call("look", {"word": TURN_MARK if place == turns - 1 else "first"}, make_call_id(place))
            thought = thoughts[place] if thoughts else ""
            text = f"{self.tags.opening}\n{thought}\n{self.tags.closing}\n\n" if thought and as_text else ""
            messages += self._exchange([call], [_RESULTS[place]], text, "" if as_text else thought)
        return self._render(messages, header=True)

    def _reads(self, text: str, calls: Sequence[Call]) -> bool:
        return _reads(self.form, text, calls, self._renderer.tokens)

    def _extract_call(self, text: str) -> str:
        """Return the last turn with calls in a rendering with one turn."""
        end = self._find_stop(text)
        if end is None:
            raise ValueError(text)
        return _drop_start(
            text[text.index(QUESTION_MARK) + len(QUESTION_MARK) : end[0]], self.header, self._known_tags
        ).strip()

    def _find_stop(self, text: str) -> tuple[int, int] | None:
        """Return where the stop token after the last call begins and ends in a rendering, or None."""
        begin = text.find(TURN_MARK)
        at = text.find(self.stop, begin) if begin >= 0 else -1
        return None if at < 0 else (at, at + len(self.stop))

    # Checks.

    def _check_history(self) -> None:
        """Check that a longer conversation begins like a shorter one, and ends with the same results."""
        one, two = self._render_conversation(1), self._render_conversation(2)
        prompt = self._render(self.start, header=True)
        question = prompt.index(QUESTION_MARK) + len(QUESTION_MARK)
        result = one.index(_RESULTS[0]) + len(_RESULTS[0])
        first = one[:result].replace(TURN_MARK, "first")
        if one[:question] != prompt[:question] or two[: len(first)] != first:
            raise self.error(
                "rollouts.template-rewrites-history", "rewrites earlier turns or results; use a template that appends"
            )
        if not self._ends_alike(two):
            self.numbers_calls = True
            if not self._ends_alike(two):
                raise self.error(
                    "rollouts.template-turn-end-varies",
                    "writes results differently in later turns; use a template that only appends",
                )

    def _ends_alike(self, text: str) -> bool:
        """Return True if a conversation of two turns ends with the results that `render_results` returns."""
        end = self._find_stop(text)
        call = Call("look", {"word": TURN_MARK}, make_call_id(1))
        return end is not None and text[end[1] :] == self.render_results([call], [_RESULTS[1]], 1)


def derive_template(renderer: Renderer) -> ChatTemplate:
    """Return a chat template with the first way to give messages to it that works.

    Raises:
        UsageError: if it leaves out tools, cannot render calls or results, rewrites the history, writes calls in an
            unknown form, or does not end turns with a token.
    """
    problem: UsageError | None = None
    failure, knows_tools, writes_turns = "", False, False
    for style in _list_styles(renderer):
        try:
            if TOOL["function"]["name"] not in renderer.render(style.start("S", "U"), [TOOL], header=True):
                continue
            knows_tools = True
            form = _find_form(renderer, style)
            writes_turns = True
            if form is not None:
                return ChatTemplate(renderer, style, form)
        except RenderingError as error:
            failure = failure or str(error)
        except UsageError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    if not knows_tools:
        raise renderer.error("rollouts.template-no-tools", "leaves out the tools; use a template that knows tools")
    if not writes_turns:
        raise renderer.error("rollouts.template-render-failed", f"cannot render a conversation with tools: {failure}")
    raise renderer.error(
        "rollouts.template-no-tool-calls", "does not write tool calls in a known form; use a template that knows tools"
    )


def _list_styles(renderer: Renderer) -> Iterator[MessageStyle]:
    """Yield the ways to try: with a field for calls, then with calls in the text, in a form that the prompt shows."""
    yield from STYLES
    for form, has_system_role in product(FORMS, (True, False)):
        style = MessageStyle(has_system_role, calls_in_content=form)
        try:
            prompt = renderer.render(style.start("S", "U"), [TOOL], header=True)
        except RenderingError:
            continue
        if any(hint in prompt for hint in form.hints or form.marks):
            yield style


def _find_form(renderer: Renderer, style: MessageStyle) -> CallForm | None:
    """Return the form that reads a template's own renderings of calls, or None.

    Raises:
        RenderingError: if the template cannot render a turn with a call and its result.
    """
    start, turns = style.start(SYSTEM_MARK, QUESTION_MARK), list[str]()
    prompt = renderer.render(start, [TOOL], header=True)
    if SYSTEM_MARK not in prompt:
        raise RenderingError("it leaves out the system prompt")
    header, tags = prompt.partition(QUESTION_MARK)[2], find_tags(renderer.source + prompt)
    for probe in _PROBES:
        call = Call(probe.name, probe.arguments, make_call_id(0))
        messages = [*start, style.turn([call]), *style.results([call], _RESULTS[:1])]
        _, found, after = renderer.render(messages, [TOOL], header=True).partition(QUESTION_MARK)
        if not found or _RESULTS[0] not in after:
            raise RenderingError("it leaves out the question, or the result of a call")
        turns.append(_drop_start(after[: after.index(_RESULTS[0])], header, tags))
    for form in FORMS if style.calls_in_content is None else (style.calls_in_content,):
        if all(_reads(form, turn, (probe,), renderer.tokens) for turn, probe in zip(turns, _PROBES, strict=True)):
            return form
    return None


def _reads(form: CallForm, text: str, calls: Sequence[Call], tokens: set[str]) -> bool:
    """Return True if a form reads exactly these calls from a text, up to a token that is not one of the form's."""
    ends = tokens - set(form.marks)
    stop = min((at for at in (text.find(token) for token in ends) if at >= 0), default=len(text))
    for turn in (text[:stop], text[:stop].strip()):
        try:
            found = form.parse(turn, [TOOL])
        except (NoCallError, UnusableCallError):
            continue
        if [(each.name, each.arguments) for each in found] == [(each.name, each.arguments) for each in calls]:
            return True
    return False


def _find_tokens(text: str, tokens: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the places of tokens in a text."""
    if tokens:
        for found in re.finditer("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))), text):
            yield found.start(), found[0]


def _strip_header(text: str, header: str) -> str:
    """Return a text without the pieces of the header that it begins with."""
    for piece in _PIECE.findall(header):
        if text.startswith(piece):
            text = text[len(piece) :]
        elif not piece.isspace():
            break
    return text


def _drop_start(text: str, header: str, tags: ReasoningTags) -> str:
    """Return a turn without the header before it and without its reasoning."""
    is_open = tags.is_open(header) and text.startswith(header.rstrip())
    return tags.split(_strip_header(text, header), is_open=is_open)[1]


def make_call_id(number: int) -> str:
    """Return an id of nine characters, which Mistral's templates require, for a call without one."""
    return f"call{number:05d}"
