"""Files with one message each: compressed, in UTF-16, of Apple Mail, damaged."""

import bz2
import gzip
import lzma
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail import message_files
from gumshoe.mail.items import RawFile, parse_item
from gumshoe.mail.message import ParsedMessage, State

MAIL = b"From: ann@example.com\nSubject: one\nMessage-ID: <1@example.com>\n\nThe lease ends in J\xc3\xbcni.\n"
PLIST = b'<?xml version="1.0" encoding="UTF-8"?>\n<plist version="1.0"><dict>%s</dict></plist>\n'
FLAGS = b"<key>flags</key>\n\t<integer>%d</integer>"


def parse(raw: bytes, state: State = "") -> ParsedMessage:
    message = parse_item(RawFile("dir/1", raw, state))
    assert isinstance(message, ParsedMessage)
    return message


def parse_unreadable(raw: bytes) -> tuple[str, str]:
    item = parse_item(RawFile("dir/1", raw))
    assert isinstance(item, UnreadableItem)
    return item.where, item.reason


def zstd(raw: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(raw))


PACKERS: list[Callable[[bytes], bytes]] = [gzip.compress, bz2.compress, lzma.compress, zstd]


@pytest.mark.parametrize("pack", PACKERS)
def test_compressed_messages_are_read(pack: Callable[[bytes], bytes]) -> None:
    assert parse(pack(MAIL)) == parse(MAIL)
    assert parse(pack(MAIL)).body == "The lease ends in Jüni."


@pytest.mark.parametrize("pack", PACKERS)
def test_damaged_messages_are_reported(pack: Callable[[bytes], bytes]) -> None:
    packed = pack(MAIL * 20)
    assert parse_unreadable(packed[:20]) == ("dir/1", "damaged file")
    assert parse_unreadable(packed[:12] + b"\xff" * 40)[0] == "dir/1"


@pytest.mark.parametrize("pack", PACKERS)
def test_messages_that_unpack_to_too_much_are_reported(
    pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(MAIL + b"x" * 100_000)
    monkeypatch.setattr(message_files, "MAX_MESSAGE_SIZE", 50_000)
    assert parse_unreadable(packed) == ("dir/1", "message too large")


@pytest.mark.parametrize(
    ("start", "reason"),
    [(b"Dovecot-LZ4\x0d\x2a\x9b\xc5", "packed with lz4"), (b"CRYPTED\x03\x07", "encrypted by Dovecot")],
)
def test_other_packing_is_named(start: bytes, reason: str) -> None:
    assert parse_unreadable(start + b"\0" * 100) == ("dir/1", reason)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_messages_with_a_byte_order_mark_are_read(encoding: str) -> None:
    text = MAIL.decode()
    assert parse(text.encode(encoding)).subject == "one"
    assert parse(text.replace("\n", "\r\n").encode(encoding)).body == "The lease ends in Jüni."
    assert parse(b"\xfe\xff" + text.encode("utf-16-be")).body == "The lease ends in Jüni."


@pytest.mark.parametrize("length", [len(MAIL), len(MAIL) - 3, len(MAIL) + 40, 0, 10**9])
def test_files_of_apple_mail_are_read_even_if_the_length_is_wrong(length: int) -> None:
    raw = b"%-10d\n" % length + MAIL + PLIST % (FLAGS % 8590195713)
    message = parse(raw)
    assert (message.subject, message.body, message.state) == ("one", "The lease ends in Jüni.", "")


@pytest.mark.parametrize(
    ("plist", "state"),
    [
        (PLIST % (FLAGS % 0b10), "deleted"),
        (PLIST % (FLAGS % (1 << 24 | 1)), "spam"),
        (PLIST % (FLAGS % (1 << 25)), ""),
        (PLIST % b"", ""),
        (b"", ""),
        (b"<?xml broken", ""),
    ],
)
def test_flags_of_apple_mail_tell_the_state(plist: bytes, state: State) -> None:
    assert parse(b"%d\n" % len(MAIL) + MAIL + plist).state == state


def test_flags_count_more_than_folders_only_if_they_say_deleted() -> None:
    junk = b"%d\n" % len(MAIL) + MAIL + PLIST % (FLAGS % (1 << 24))
    deleted = b"%d\n" % len(MAIL) + MAIL + PLIST % (FLAGS % 2)
    assert [parse(raw, "trash").state for raw in (MAIL, junk, deleted)] == ["trash", "trash", "deleted"]
    assert parse(b"X-Mozilla-Status: 0009\n" + MAIL).state == "deleted"
    assert parse(b"Subject: x\nX-Mozilla-Status: 0009\n" + MAIL).state == ""


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(
        [b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\xff\xfe", b"12\n", b"12 \r\n", b""]
    ),
    st.binary(max_size=200),
)
def test_no_content_fails(start: bytes, rest: bytes) -> None:
    assert isinstance(parse_item(RawFile("x", start + rest)), ParsedMessage | UnreadableItem)


@pytest.mark.parametrize("pack", PACKERS)
def test_a_message_that_is_cut_is_not_taken_for_a_whole_one(pack: Callable[[bytes], bytes]) -> None:
    packed = pack(MAIL + random.Random(1).randbytes(300_000))
    assert parse_unreadable(packed[: len(packed) // 2]) == ("dir/1", "damaged file")


def test_a_file_above_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_files, "MAX_MESSAGE_SIZE", len(MAIL) - 1)
    assert parse_unreadable(MAIL) == ("dir/1", "message too large")
