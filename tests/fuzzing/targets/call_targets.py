"""Targets: what models write, from the text of a turn to the result of a tool and the judged answer."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import BadArgumentsError, Call, ToolError, UnknownToolError
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.heuristic import units
from gumshoe.rewards.heuristic.heuristic_judge import judge_answer
from gumshoe.rollouts.call_forms import FORMS, UnusableCallError
from gumshoe.rollouts.chat_answers import ApiCall
from gumshoe.rollouts.chat_format.reasoning import find_tags
from tests.fuzzing.byte_inputs import damaged, joined, json_values, texts
from tests.fuzzing.fuzz_target import Check, FuzzTarget, simple_target
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.rollouts.call_examples import BROKEN, EVERYTHING, EXAMPLES, TOOL
from tests.scenarios.questions import scenario

_NUMBER = {form.name: number for number, form in enumerate(FORMS)}
_PIECES = [mark.encode() for form in FORMS for mark in (form.open, form.close, *form.marks) if mark] + [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b'"',
        b"'",
        b"(",
        b")",
        b"=",
        b"\\u",
        b"\\ud800",
        b"look",
        b"word",
        b"n",
        b"null",
    ),
    *(b"<think>", b"</think>", b"<![CDATA[", b"]]>", b"1e999", b"NaN", b"-", b"9" * 5000),
]
_TOOLS = ("search_inbox", "read_email", "return_final_answer")
_ARGUMENTS = (
    *("keywords", "sender", "recipient", "sent_after", "sent_before", "one_per_thread", "message_id", "whole_thread"),
    *("page", "answer", "message_ids", "self", "args", ""),
)
_DATES = (
    "2001-05-05",
    "0001-01-01",
    "9999-12-31",
    "2001-05-05T00:00:00+23:59",
    "0001-01-01T00:00+14:00",
    "20010505",
    "2001-W01-1",
)


def turns() -> st.SearchStrategy[bytes]:
    """Return a byte with the number of a form, and a turn that may have calls in that form or in another."""
    written = [bytes([number]) + form.write([Call("look", EVERYTHING)]).encode() for number, form in enumerate(FORMS)]
    texts_of = [*((form, text) for form, text, *_ in EXAMPLES), *((form, text) for form, text, _ in BROKEN)]
    known = [bytes([_NUMBER[form]]) + text.encode("utf-8", "surrogatepass") for form, text in texts_of]
    return damaged([*written, *known], _PIECES, most=5)


def _check_turn(data: bytes) -> None:
    form, text = (
        FORMS[data[0] % len(FORMS) if data else 0],
        data[1:].decode("utf-8", "surrogatepass" if _is_wtf8(data) else "replace"),
    )
    tags = find_tags(text)
    _, rest, _ = tags.split(text, is_open=tags.is_open(text[:20]))
    outside = form.outside(rest)
    assert len(outside) <= len(rest)
    try:
        calls = form.parse(rest, [TOOL])
    except UnusableCallError:
        return
    for call in calls:
        assert isinstance(call.name, str)
        assert isinstance(call.arguments, dict)
        assert all(isinstance(name, str) for name in call.arguments)
    form.write(calls).encode()


def _is_wtf8(data: bytes) -> bool:
    try:
        data[1:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


@st.composite
def api_calls(draw: st.DrawFn) -> bytes:
    """Return the name of a tool, a line end, and its arguments as JSON, which may be damaged."""
    values = json_values(5) | texts() | st.sampled_from(_DATES) | st.lists(texts(), max_size=40)
    arguments = draw(st.dictionaries(st.sampled_from(_ARGUMENTS) | texts(5), values, max_size=6))
    line = json.dumps(arguments).encode()
    name = draw(st.sampled_from(_TOOLS) | texts(5)).replace("\n", "").encode("utf-8", "surrogatepass")
    return name + b"\n" + draw(st.just(line) | damaged([line], _PIECES, most=2))


@contextmanager
def _open_tools() -> Iterator[Check]:
    with tempfile.TemporaryDirectory() as name:
        mail = [
            record(number, body=f"gas price {number}", sender="bob@example.com", to=["ann@example.com"])
            for number in range(1, 30)
        ]
        index = make_index(Path(name), mail, KEEP_ALL)
        yield lambda data: _check_tools(index, data)


def _check_tools(index: MailIndex, data: bytes) -> None:
    """Run a call in each variant of the environment. Every error must be one that the model is shown."""
    name, _, arguments = data.partition(b"\n")
    try:
        call = ApiCall("1", name.decode("utf-8", "replace"), arguments.decode("utf-8", "replace")).parse()
    except UnusableCallError:
        return
    variants: tuple[dict[str, Any], ...] = ({}, {"handles": True, "message_characters": 200}, {"threads": False})
    for settings in variants:
        place = EmailEnvironment(index, scenario(1, query_date="2001-05-20"), 10, **settings)
        try:
            shown = place.toolbox.run(call)
        except (BadArgumentsError, ToolError, UnknownToolError) as error:
            shown = str(error)
        assert len(shown.encode()) < 200_000
        assert place.toolbox.run(Call("search_inbox", {"keywords": ["gas"]}))


_NUMBERS = (
    *("0", "1", "-5", "12,500", "1.234,5", "0.5", "1/2", "1e3", "1e999", "9" * 400, "half", "a dozen", "twenty-one"),
    *("first", "3rd", "IV", "1:30", "25:61", "2001", "12 May", "31/02/2001", "May 32", "tomorrow", "last Friday"),
    *("10am", "+44 20 7946 0958", "PO-00012", "ann@example.com"),
)
_BETWEEN = (*"   -/.~()$€%", "", ", ", " and ", " or ", " to ", " not ", " more than ")


def judged_texts() -> st.SearchStrategy[bytes]:
    """Return lines for question, reference and answer, of numbers, dates, units and what stands between them."""
    words = ("How many", "When", "Who", "the filter", "no", "yes", "Ann", *_NUMBERS, *_BETWEEN, *_BETWEEN)
    amounts = [each for name in sorted(units._table()) for each in (name, f"5 {name}")]
    lines = [joined([each.encode() for each in known]) for known in (words, [*words, *amounts])]
    return st.tuples(lines[0], lines[1], lines[1]).map(b"\n".join)


def _check_judge(data: bytes) -> None:
    question, _, rest = data.decode("utf-8", "replace").partition("\n")
    reference, _, answer = rest.partition("\n")
    for asked in (None, date(2001, 5, 4), date.min, date.max):
        assert judge_answer(question, reference, answer, asked).rule
        same = judge_answer(question, reference, reference, asked)
        assert same.correct or same.rule == "no answer", same


CALL_TARGETS = (
    simple_target("calls", turns, _check_turn, 200),
    FuzzTarget("tools", api_calls, _open_tools, 100),
    simple_target("judge", judged_texts, _check_judge, 200),
)
