"""Threads: what belongs together in an inbox, and how a thread is shown."""

import itertools
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.mail.index import MailIndex
from gumshoe.mail.search_arguments import Order
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record

ANN, BOB = "ann@example.com", "bob@example.com"


def reply(number: int, *references: int, **fields: Any) -> dict[str, Any]:
    subject = fields.pop("subject", f"Subject {number}")
    return record(number, references=[f"<{each}@example.com>" for each in references], subject=subject, **fields)


def thread_of(index: MailIndex, number: int, inbox: str = BOB) -> list[int]:
    return [int(each.message_id[1:-1].split("@")[0]) for each in index.read_thread(inbox, f"<{number}@example.com>")]


def test_references_connect_messages_with_any_subject(tmp_path: Path) -> None:
    index = make_index(tmp_path, [reply(1), reply(2, 1), reply(3, 1, 2), reply(4), reply(5, 99), reply(6, 99)])
    assert [thread_of(index, number) for number in range(1, 7)] == [[1, 2, 3]] * 3 + [[4]] + [[5, 6]] * 2


def test_other_inboxes_do_not_connect_messages(tmp_path: Path) -> None:
    """Let a message of Carol refer to two messages of Bob that have nothing to do with each other."""
    index = make_index(
        tmp_path, [reply(1), reply(2), reply(3, 1, 2, to=["carol@example.com"], sender="eve@example.com")]
    )
    assert [thread_of(index, 1), thread_of(index, 2)] == [[1], [2]]
    (hit,) = index.search(BOB, ["body", "1"])
    assert (hit.thread, hit.thread_size) == ("<1@example.com>", 1)


@pytest.mark.parametrize(
    ("change", "together"),
    [
        ({}, True),
        ({"subject": "AW: Re: [team] Budget"}, True),
        ({"subject": "Budget"}, False),
        ({"subject": "Re: Other"}, False),
        ({"sender": "eve@example.com"}, False),
        ({"date": "2001-07-01T12:00:00Z"}, False),
    ],
)
def test_without_references_subject_people_and_time_connect(
    tmp_path: Path, change: dict[str, Any], together: bool
) -> None:
    second = record(2, **{"subject": "Re: Budget", **change})
    index = make_index(tmp_path, [record(1, subject="Budget"), second])
    assert thread_of(index, 1) == ([1, 2] if together else [1])


@pytest.mark.parametrize(("number", "expected"), [(1, range(1, 41)), (60, range(21, 61))])
def test_of_many_messages_of_a_subject_the_nearest_in_time_are_connected(
    tmp_path: Path, number: int, expected: range
) -> None:
    dates = [f"2001-05-{1 + hour // 24:02}T{hour % 24:02}:00:00Z" for hour in range(1, 61)]
    records = [record(place, subject="Re: Budget", date=date) for place, date in enumerate(dates, 1)]
    assert thread_of(make_index(tmp_path, records), number) == list(expected)


def test_a_thread_is_read_without_repetitions(tmp_path: Path) -> None:
    quoted = "No, on Friday.\n\nOn Wed, 2 May 2001 at 12:00, Ann <ann@example.com> wrote:\n> Is it due on Monday?\n"
    records = [
        reply(1, body="Is it due on Monday?", subject="Due"),
        reply(2, 1, body=quoted, subject="Re: Due", sender=BOB, to=[ANN]),
    ]
    index = make_index(tmp_path, records)
    assert [each.body.strip() for each in index.read_thread(BOB, "2@example.com")] == [
        "Is it due on Monday?",
        "No, on Friday.",
    ]
    assert index.read(BOB, "2@example.com").body == quoted.strip()


@pytest.mark.parametrize(
    ("subjects", "is_whole"), [(("Re: Due", "Re: Due"), [True, False]), (("Due", "Fwd: Due"), [True, True])]
)
def test_the_first_message_and_forwarded_ones_keep_what_they_quote(
    tmp_path: Path, subjects: tuple[str, str], is_whole: list[bool]
) -> None:
    quoting = "See {}.\n\nOn Tue, 1 May 2001 at 12:00, Eve <eve@example.com> wrote:\n> The gas is due on Monday.\n"
    records = [
        reply(number, *range(1, number), body=quoting.format(number), subject=subject)
        for number, subject in enumerate(subjects, 1)
    ]
    thread = make_index(tmp_path, records).read_thread(BOB, "2@example.com")
    assert ["due on Monday" in each.body for each in thread] == is_whole
    assert [each.body[:6] for each in thread] == ["See 1.", "See 2."]


def test_a_search_can_return_one_hit_of_each_thread(tmp_path: Path) -> None:
    records = [reply(number, *range(1, number), body="word") for number in range(1, 4)]
    index = make_index(tmp_path, [*records, reply(9, body="word word")])
    hits = index.search(BOB, ["word"], order="date", one_per_thread=True)
    assert [(hit.message_id, hit.thread, hit.thread_size) for hit in hits] == [
        ("<9@example.com>", "<9@example.com>", 1),
        ("<3@example.com>", "<1@example.com>", 3),
    ]


def test_a_thread_of_a_thousand_messages_is_bounded(tmp_path: Path) -> None:
    records = [reply(number, *range(max(number - 3, 1), number)) for number in range(1, 1001)]
    index = make_index(tmp_path, records)
    assert len(index.read_thread(BOB, "<500@example.com>")) == 200


def test_a_hidden_blind_copy_does_not_connect_messages(tmp_path: Path) -> None:
    """Let two messages to Bob, of one subject, share only a person whom Bob may not see."""
    first = record(1, subject="Budget", sender="ann@example.com", bcc=["zoe@example.com"])
    second = record(2, subject="Re: Budget", sender="eve@example.com", bcc=["zoe@example.com"])
    index = make_index(tmp_path, [first, second])
    assert [thread_of(index, 1), thread_of(index, 2)] == [[1], [2]]
    assert thread_of(index, 1, inbox="zoe@example.com") == [1, 2]  # both went to Bob


def test_a_long_thread_leaves_room_for_others(tmp_path: Path) -> None:
    """Let the 150 newest matches be of one thread, and list one match of each thread."""
    records = [reply(number, body="word", date=_date(4 - number)) for number in range(1, 4)]
    records += [reply(number, 100, body="word", date=_date(8)) for number in range(101, 250)]
    index = make_index(tmp_path, [*records, reply(100, body="word", date=_date(9))], KEEP_ALL)
    for limit, expected in ((1, [100]), (3, [100, 1, 2]), (10, [100, 1, 2, 3])):
        hits = index.search(BOB, ["word"], order="date", limit=limit, one_per_thread=True)
        assert [hit.message_id for hit in hits] == [f"<{number}@example.com>" for number in expected]


timed_messages = st.lists(
    st.fixed_dictionaries(
        {
            "day": st.none() | st.integers(1, 9),
            "references": st.lists(st.integers(0, 9), max_size=2),
            "subject": st.sampled_from(["Budget", "Re: Budget"]),
            "body": st.lists(st.sampled_from(["gas", "power", "price"]), min_size=1, max_size=4).map(" ".join),
        }
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.ci
@settings(max_examples=40)
@given(messages=timed_messages, keywords=st.lists(st.sampled_from(["gas", "power"]), min_size=1, max_size=2))
def test_an_inbox_is_shown_as_it_was_before_a_time(messages: list[dict[str, Any]], keywords: list[str]) -> None:
    """Check that searches, counts, threads and messages are as if no later message were in the index."""
    records = [
        reply(number, *each["references"], subject=each["subject"], body=each["body"], date=_date(each["day"]))
        for number, each in enumerate(messages)
    ]
    visible = [number for number, each in enumerate(messages) if each["day"] is not None and each["day"] < 5]
    until = datetime(2001, 5, 5, tzinfo=UTC)
    with TemporaryDirectory() as directory:
        whole = make_index(Path(directory) / "whole", records, KEEP_ALL)
        before = make_index(Path(directory) / "before", [records[number] for number in visible], KEEP_ALL)
        for number in range(len(messages)):
            whole.read_thread(BOB, f"<{number}@example.com>")  # fills caches that must not be used below
        orders: tuple[Order, ...] = ("date", "relevance")
        for grouped, order in itertools.product((False, True), orders):
            bounded = whole.search(BOB, keywords, order=order, one_per_thread=grouped, visible_before=until)
            assert bounded == before.search(BOB, keywords, order=order, one_per_thread=grouped)
            partly = whole.search_partially(BOB, [*keywords, "zebra"], one_per_thread=grouped, visible_before=until)
            assert partly == before.search_partially(BOB, [*keywords, "zebra"], one_per_thread=grouped)
        for number in range(len(messages)):
            name = f"<{number}@example.com>"
            if number in visible:
                assert whole.read(BOB, name, visible_before=until) == before.read(BOB, name)
                assert whole.read_thread(BOB, name, visible_before=until) == before.read_thread(BOB, name)
            else:
                with raises("mail.message-not-found", name):
                    whole.read_thread(BOB, name, visible_before=until)


def _date(day: int | None) -> str:
    return "" if day is None else f"2001-05-{day:02}T00:00:00+00:00"


def test_a_later_copy_of_a_message_is_not_visible(tmp_path: Path) -> None:
    """Let a copy of the first message, sent later to others, refer to another message."""
    first = reply(1, body="same", subject="Plan", date=_date(1))
    later = reply(2, 3, body="same", subject="Plan", date=_date(8), cc=["zoe@example.com"])
    undated = reply(4, body="same", subject="Plan", date="", cc=["carol@example.com"])
    index = make_index(tmp_path, [first, later, undated, reply(3, body="other", date=_date(2))])
    until = datetime(2001, 5, 5, tzinfo=UTC)
    message = index.read(BOB, "<1@example.com>", visible_before=until)
    assert [each.address for each in message.recipients] == [BOB]
    assert len(index.read(BOB, "<1@example.com>").recipients) == 3
    (hit,) = index.search(BOB, ["same"], visible_before=until)
    assert (hit.thread, hit.thread_size) == ("<1@example.com>", 1)
    (other,) = index.search(BOB, ["other"], visible_before=until)
    assert (other.thread, other.thread_size) == ("<3@example.com>", 1)
    (other,) = index.search(BOB, ["other"])
    assert (other.thread, other.thread_size) == ("<1@example.com>", 2)
    for hidden in ("<2@example.com>", "<4@example.com>"):
        with raises("mail.message-not-found", hidden):
            index.read(BOB, hidden, visible_before=until)
