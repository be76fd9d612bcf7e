"""Threads: what belongs together in an inbox, and how a thread is shown."""

from pathlib import Path
from typing import Any

import pytest

from gumshoe.mail.index import MailIndex
from tests.mail.mailbox import make_index, record

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
