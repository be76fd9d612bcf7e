"""Splitting of mbox files: what separates two messages and what does not, in any block size, in bounded memory."""

import bz2
import gzip
import lzma
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail import mbox as mbox_module
from gumshoe.mail import separators
from gumshoe.mail.items import RawMessage
from gumshoe.mail.mbox import split_mbox
from gumshoe.mail.sources import open_source

DATED = b"From pat@example.com Tue Mar  5 09:30:00 2024"


def headers(number: int) -> bytes:
    return (
        f"From: pat@example.com\nTo: ann@example.com\nSubject: {number}\nMessage-ID: <{number}@example.com>\n"
        "Date: Tue, 5 Mar 2024 09:30:00 +0100\n"
    ).encode()


def mail(number: int, body: bytes = b"Text.\n") -> bytes:
    return headers(number) + b"\n" + body


def split(data: bytes, size: int = 0) -> tuple[list[bytes], list[str]]:
    """Split an mbox, given in blocks of a size. Return its messages, and the reasons of what is reported."""
    blocks = [data[start : start + size] for start in range(0, len(data), size)] if size else [data]
    items = list(split_mbox(blocks, "box"))
    messages = [item.raw for item in items if isinstance(item, RawMessage)]
    return messages, [item.reason for item in items if isinstance(item, UnreadableItem)]


SEPARATORS = [
    DATED,
    b"From - Tue Mar  5 09:30:00 2024",
    b"From -",
    b"From ",
    b"From",
    b"From pat@example.com",
    b"From pat@example.com 2024-03-05T09:30:00Z",
    b"From pat@example.com 2024-03-05 09:30:00 +0100",
    b"From pat@example.com 2024-03-05",
    b"From pat@example.com Tue Mar 5",
    b"From pat@example.com Tue Mar 5 2024",
    b"From pat@example.com Tue Mar 5 09:30",
    b"From pat@example.com Tue, 5 Mar 2024 09:30:00 +0100",
    b"From pat@example.com Tue Mar  5 09:30:00 CET 2024",
    b"From pat@example.com Tue Mar  5 09:30:00 +0100 2024",
    b"From pat@example.com Di M\xc3\xa4r  5 09:30:00 2024",
    b"From pat@example.com 05.03.2024 09:30",
    b"From pat@example.com 1709627400",
    b"From pat@example.com Tue Mar  5 09:30:00 2024 remote from host",
    b"From MAILER-DAEMON Tue Mar 5 9:30 2024",
    b"From MAILER-DAEMON",
    b"From 1790@xxx Tue Mar 05 08:30:00 +0000 2024",
    b"From ???@??? Tue Mar 05 09:30:00 2024",
    b"From pat at example.com  Tue Mar  5 09:30:00 2024",
    b'From "Lee, Pat" <pat@example.com> Tue Mar  5 09:30:00 2024',
    b'From "Lee, Pat" <pat@example.com>',
    b"From Pat Lee Tue Mar  5 09:30:00 2024",
    b"From Pat Lee",
    b"From pat\tTue Mar  5 09:30:00 2024",
    b"From " + b"x" * 2000 + b"@example.com Tue Mar  5 09:30:00 2024",
]


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("above", [b"", b"\n", b"--limit--\n", b"--limit\n", b"\n\n"], ids=repr)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_every_form_of_separator_separates(separator: bytes, above: bytes, end: bytes) -> None:
    expected = [mail(1) + above, mail(2) + above, mail(3) + above]
    data = b"".join(separator + b"\n" + message for message in expected)
    messages, problems = split(data.replace(b"\n", end))
    assert messages == [message.replace(b"\n", end) for message in expected]
    assert problems == []


FOLDER_SUBJECT = b"Subject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_data_that_a_mail_program_keeps_about_a_folder_is_no_message(end: bytes) -> None:
    data = (
        b"From MAILER-DAEMON Tue Mar  5 09:30:00 2024\nDate: 05 Mar 2024 09:30:00 +0100\n"
        b"From: Mail System Internal Data <MAILER-DAEMON@host>\n"
        + FOLDER_SUBJECT
        + b"Message-ID: <1709627400@host>\nX-IMAP: 1709627400 0000000002\nStatus: RO\n\nThis text is internal.\n\n"
    )
    question = mail(2).replace(b"Subject: 2\n", FOLDER_SUBJECT.replace(b": ", b": Re: "))
    messages, problems = split((data + DATED + b"\n" + question).replace(b"\n", end))
    assert (messages, problems) == ([question.replace(b"\n", end)], ["no message"])


@pytest.mark.parametrize("headers", [b"", b"From: Mail System Internal Data <MAILER-DAEMON@host>\n", FOLDER_SUBJECT])
def test_a_message_about_data_of_a_folder_is_kept(headers: bytes) -> None:
    message = b"To: ann@example.com\n" + headers + b"\nThe first message says:\n" + FOLDER_SUBJECT
    assert split(DATED + b"\n" + message) == ([message], [])


def test_messages_with_different_headers_are_separated() -> None:
    first = [
        b"X-Mozilla-Status: 0001\nSubject: x\n",
        b"Return-Path: <pat@example.com>\nReceived: by x\n",
        b"X-Own: one\n line\nX-Other:two\nFrom : pat@example.com\nDate: x\n",
        b"subject: x\nFROM: pat@example.com\n",
        b"X-GM-THRID: 1790\nX-Gmail-Labels: Inbox\nMIME-Version: 1.0\n",
        b">From x@y Tue Mar  5 09:30:00 2024\nReceived: by x\nTo: ann@example.com\n",
        b"From x@y Tue Mar  5 09:30:00 2024\nReceived: by x\nTo: ann@example.com\n",
        b"\nDate: x\nFrom: pat@example.com\n",
        b"Return-Path<x>\nDate: x\nFrom: pat@example.com\nReceived: by x\n",
        b"Received: by x\nfor y\nDate: x\nbroken\nFrom: pat@example.com\n",
    ]
    for each in first:
        messages, problems = split((DATED + b"\n" + each + b"\nText.\n\n") * 3)
        assert (len(messages), problems) == (3, []), each


BODIES = [
    b"Plan for the day:\n\nFrom the north gate at 10:15, then room 2024 at noon.\nBring the keys.\n",
    b"\nFrom Monday, 4 March 2024\nTo: Friday, 8 March 2024\nwe are closed.\n",
    b"From here on\nSubject: to change\nwe walk.\n",
    b"From Bob\nTo: me\nSubject: this\n",
    b"See below.\n\nFrom my phone\n\nFrom: Bob <bob@example.com>\nSent: Monday\nTo: Ann\nSubject: x\n\nOld text.\n",
    b"From my phone\nFrom: Bob <bob@example.com>\nSent: Monday\nTo: Ann\nSubject: x\n\nOld text.\n",
    b"From what I see:\nFrom: Bob <bob@example.com>\nSubject: x\nDate: Monday\nTo: Ann\n\nOld text.\n",
    b"\nFrom - the last item is open\nNote: it\n",
    b"\nFrom pat@example.com\nwe heard nothing.\n",
    b"\nFrom pat@example.com Tue Mar  5 09:30:00 2024\nis how such a line looks.\n",
    b"\nFrom pat@example.com Tue Mar  5 09:30:00 2024\nhttp://example.com is how such a line looks.\n",
    b"\nFrom 1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d Mon Sep 17 00:00:00 2001\nFrom: Bob <bob@example.com>\n"
    b"Date: Tue, 5 Mar 2024 09:30:00 +0100\nSubject: [PATCH] Mend it\n\n---\n a.c | 2 +-\n",
    b"From 1a2b3c4 Mon Sep 17 00:00:00 2001\nFrom: Bob <bob@example.com>\nMessage-ID: <x@y>\nDate: x\n\nx\n",
    b"--limit\nContent-Type: message/rfc822\n\nFrom bob@example.com Tue Mar  5 09:30:00 2024\n"
    b"From: bob@example.com\nDate: x\nMessage-ID: <x@y>\n\nattached\n--limit--\n",
    b"\nFrom  : Bob <bob@example.com>\nDate: x\nMessage-ID: <x@y>\nTo: me\n\nForwarded.\n",
    b"Fromage\nFromm: x\n From x\nFrom\xc2\xa0x\n",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_lines_of_a_body_that_look_like_separators_are_kept(body: bytes, end: bytes) -> None:
    data = b"".join(DATED + b"\n" + mail(number, body) + b"\n" for number in range(1, 4)).replace(b"\n", end)
    messages, problems = split(data)
    assert messages == [(mail(number, body) + b"\n").replace(b"\n", end) for number in range(1, 4)]
    assert problems in ([], ["unclear separators"])


@pytest.mark.parametrize(
    "last", [b"From the hill we saw it.", b"From here", b"From", b"From noon at x", b"From a\nFrom b"]
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_the_last_lines_of_a_body_are_kept_if_the_separator_follows_at_once(last: bytes, end: bytes) -> None:
    bodies = [mail(number, b"Text.\n" + last + b"\n").replace(b"\n", end) for number in range(1, 4)]
    assert split(b"".join(DATED + end + each for each in bodies)) == (bodies, [])


def test_a_separator_without_a_date_separates_though_the_line_of_a_patch_follows() -> None:
    patch = b"From 1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d Mon Sep 17 00:00:00 2001\n"
    assert len(split((b"From pat@example.com\n" + patch + mail(1) + b"\n") * 3)[0]) == 3


def test_patches_that_git_wrote_are_separated() -> None:
    separator = b"From 1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d Mon Sep 17 00:00:00 2001\n"
    message = b"From: Bob <bob@example.com>\nDate: Tue, 5 Mar 2024 09:30:00 +0100\nSubject: x\n\n---\n-- \n2.39\n\n"
    assert split((separator + message) * 3) == ([message] * 3, [])


def test_a_file_that_seems_to_hold_more_messages_is_reported() -> None:
    strange = DATED + b"\n\x00\x00 From; pat@example.com\n\nText.\n\n"
    messages, problems = split(DATED + b"\n" + mail(1) + b"\n" + strange * 500)
    assert (len(messages), problems) == (1, ["unclear separators"])
    quoted = b"".join(b">" + DATED + b"\n" + mail(number) + b"\n" for number in range(2, 500))
    messages, problems = split(DATED + b"\n" + mail(1) + b"\n" + quoted)
    assert (len(messages), problems) == (1, ["several messages in one"])
    messages, problems = split(DATED + b"\n" + mail(1, b"Text.\n" * 400_000))
    assert (len(messages), problems) == (1, ["one large message"])


def test_a_message_that_is_too_large_is_reported_and_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mbox_module, "MAX_MESSAGE_SIZE", 100_000)
    monkeypatch.setattr(mbox_module, "_BLOCK", 30_000)
    data = b"".join(DATED + b"\n" + mail(number, b"x" * 99 + b"\n") for number in range(1, 4))
    large = DATED + b"\n" + mail(9, (b"y" * 99 + b"\n") * 5000)
    items = list(split_mbox(blocks_of(data + large + data, 10_000), "box"))
    assert [item.where for item in items] == [f"box#{number}" for number in range(1, 8)]
    assert [item.reason for item in items if isinstance(item, UnreadableItem)] == ["message too large"]
    assert f"{len(large) - len(DATED) - 1:,}" in next(item.detail for item in items if isinstance(item, UnreadableItem))


def blocks_of(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(SEPARATORS), st.sampled_from([b"Text.\n", b"", *BODIES]), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 5000),
)
def test_the_size_of_blocks_makes_no_difference(parts: list[tuple[bytes, bytes, int]], size: int) -> None:
    data = b"".join(
        separator + b"\n" + mail(number, body) + b"\n" * blank for number, (separator, body, blank) in enumerate(parts)
    )
    assert split(data, size) == split(data)
    assert len(split(data)[0]) == len(parts)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            [b"From ", b"From", b">From ", b"\n", b"\r\n", b"a@b", b"From: x\n", b"Date: x\n", b" ", b"x:"]
        ),
        max_size=40,
    )
)
def test_nothing_is_lost_whatever_the_file_contains(parts: list[bytes]) -> None:
    data = b"From a@b\n" + b"".join(parts)
    kept = b"".join(split(data)[0])
    for line in data.split(b"\n"):
        if not line.startswith((b"From", b">From")):
            assert line in kept


@pytest.mark.ci
def test_the_memory_for_a_large_file_is_bounded() -> None:
    message = DATED + b"\n" + mail(1, random.Random(1).randbytes(3000).hex().encode() + b"\n") + b"\n"
    tracemalloc.start()
    count = sum(1 for _ in split_mbox((message * 150 for _ in range(60)), "box"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 150 * 60
    assert peak < 10 << 20


def test_old_line_ends_and_byte_order_marks_are_read() -> None:
    data = b"".join(DATED + b"\n" + mail(number) + b"\n" for number in range(1, 4))
    assert split(b"\xef\xbb\xbf" + data) == split(b"\n\n" + data) == split(data)
    assert split(data.replace(b"\n", b"\r")) == split(data)


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files_and_utf_16_are_read(suffix: str, pack: type, tmp_path: Path) -> None:
    data = b"".join(DATED + b"\n" + mail(number, b"Text.\n" * 5000) + b"\n" for number in range(1, 100))
    for number, each in enumerate([data, data.decode().encode("utf-16")]):
        place = tmp_path / f"{number}.mbox{suffix}"
        place.write_bytes(pack(each))
        told: list[int] = []
        source = open_source(f"mbox:{place}")
        items = list(source.read_raw(told.append))
        assert [item.raw for item in items if isinstance(item, RawMessage)] == split(data)[0]
        assert len(items) == 99
        assert sum(told) == source.total


def test_quoted_lines_lose_one_quote_in_every_message() -> None:
    messages, _ = split(DATED + b"\n" + mail(1, b">From here on it is dry.\n>>From a reply.\n> From x\n"))
    assert messages == [mail(1, b"From here on it is dry.\n>From a reply.\n> From x\n")]


@pytest.mark.parametrize("line", [b"From :\n", b"From\t:\n", b"From :\nTo: a\n"])
def test_each_line_that_looks_like_a_separator_is_judged_by_few_lines(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count the lines that are compared with a header: their number must not grow with the square of the body."""
    compared = 0
    pattern = separators._HEADER

    class CountingPattern:
        def match(self, *arguments: Any) -> Any:
            nonlocal compared
            compared += 1
            return pattern.match(*arguments)

    monkeypatch.setattr(separators, "_HEADER", CountingPattern())
    lines = 2_000
    list(split_mbox([DATED + b"\n" + mail(1, line * lines)], "box"))
    assert 0 < compared < 20 * lines
