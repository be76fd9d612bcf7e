"""Messages of Outlook (`.msg`), written here as small compound files."""

import base64
import itertools
import struct
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.items import RawFile, parse_item
from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.outlook import convert_msg
from tests.mail.raw_messages import PDF, PLAIN, mixed, multipart

pytest.importorskip("oxmsg")
Tree = dict[str, "bytes | Tree"]
SENT = datetime(2024, 3, 5, 8, 30, tzinfo=UTC)


def compound_file(tree: Tree) -> bytes:
    """Return a compound file (MS-CFB, version 3) whose streams are all smaller than 4,096 bytes."""
    entries: list[tuple[str, int, bytes, list[int]]] = []  # name, type, content, children

    def add(name: str, kind: int, content: "bytes | Tree") -> int:
        number = len(entries)
        entries.append((name, kind, content if isinstance(content, bytes) else b"", []))
        if not isinstance(content, bytes):
            for key in sorted(content, key=lambda key: (len(key), key)):
                child = content[key]
                entries[number][3].append(add(key, 2 if isinstance(child, bytes) else 1, child))
        return number

    add("Root Entry", 5, tree)
    ministream = b""
    minifat: list[int] = []
    starts: list[int] = []
    for _, kind, content, _ in entries:
        count = -(-len(content) // 64)
        starts.append(len(minifat) if kind == 2 and count else 0xFFFFFFFE)
        minifat += [len(minifat) + index + 1 for index in range(count - 1)] + [0xFFFFFFFE] * bool(count)
        ministream += content.ljust(count * 64, b"\0")
    siblings = dict.fromkeys(range(len(entries)), 0xFFFFFFFF)
    for *_, children in entries:
        siblings |= dict(itertools.pairwise(children))
    starts[0] = 0xFFFFFFFE
    sectors = [ministream, b"".join(struct.pack("<I", each) for each in minifat)]
    sizes = [-(-len(each) // 512) for each in sectors]
    directory_size = -(-len(entries) * 128 // 512)
    first = {"directory": 1, "minifat": 1 + directory_size, "ministream": 1 + directory_size + sizes[1]}
    directory = b""
    for number, (name, kind, content, children) in enumerate(entries):
        encoded = name.encode("utf-16-le")
        size, start = len(content), starts[number]
        if kind == 5:
            size, start = len(ministream), first["ministream"]
        directory += encoded.ljust(64, b"\0") + struct.pack("<HBB", len(encoded) + 2, kind, 1)
        directory += struct.pack("<III", 0xFFFFFFFF, siblings[number], children[0] if children else 0xFFFFFFFF)
        directory += bytes(16) + struct.pack("<I", 0) + bytes(16) + struct.pack("<IQ", start, size)
    fat = [0xFFFFFFFD]
    for count in (directory_size, sizes[1], sizes[0]):
        fat += [len(fat) + index + 1 for index in range(count - 1)] + [0xFFFFFFFE] * bool(count)
    assert len(fat) <= 128
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<IIIIIIII", 0, 1, 1, 0, 4096, first["minifat"], sizes[1], 0xFFFFFFFE)
    header += struct.pack("<I", 0) + struct.pack("<I", 0) + b"\xff" * 4 * 108
    pad = b"".join(each.ljust(-(-len(each) // 512) * 512, b"\0") for each in (directory, sectors[1], ministream))
    return header + struct.pack(f"<{len(fat)}I", *fat).ljust(512, b"\xff") + pad


def properties(header: int, values: dict[int, "str | bytes | int | datetime"]) -> Tree:
    """Return the streams of properties, given by their ids."""
    tree: Tree = {}
    table = bytes(header)
    for which, value in values.items():
        if isinstance(value, int):
            table += struct.pack("<HHIII", 3, which, 6, value, 0)
        elif isinstance(value, datetime):
            ticks = int((value - datetime(1601, 1, 1, tzinfo=UTC)).total_seconds()) * 10**7
            table += struct.pack("<HHIQ", 0x40, which, 6, ticks)
        else:
            kind, data = (0x1F, value.encode("utf-16-le")) if isinstance(value, str) else (0x102, value)
            tree[f"__substg1.0_{which:04X}{kind:04X}"] = data
            table += struct.pack("<HHIII", kind, which, 6, len(data) + 2, 0)
    return tree | {"__properties_version1.0": table}


def recipient(kind: int, name: str, address: str) -> Tree:
    return properties(8, {0x0C15: kind, 0x3001: name, 0x39FE: address})


SENT_MESSAGE: Tree = properties(
    32,
    {
        0x001A: "IPM.Note",
        0x0037: "Über pumps",
        0x1000: "The pump costs 250 €.\r\nBring it.",
        0x0C1A: "Meyer, Greg",
        0x0C1F: "/O=EXAMPLE/OU=X/CN=GREG",
        0x5D01: "greg@example.com",
        0x0039: SENT,
        0x1035: "<1@example.com>",
        0x1042: "<0@example.com>",
    },
) | {
    "__recip_version1.0_#00000000": recipient(1, "Lee, Ann", "ann@example.com"),
    "__recip_version1.0_#00000001": recipient(2, "bob@example.com", "bob@example.com"),
    "__recip_version1.0_#00000002": recipient(3, "", "eve@example.com"),
    "__attach_version1.0_#00000000": properties(8, {0x3707: "plan ü.txt", 0x370E: "text/plain", 0x3701: b"dig here"}),
}


def parse(tree: Tree) -> ParsedMessage:
    message = parse_item(RawFile("dir/1.msg", compound_file(tree)))
    assert isinstance(message, ParsedMessage), message
    return message


def test_a_sent_message_is_read_from_its_properties() -> None:
    message = parse(SENT_MESSAGE)
    assert (message.message_id, message.sent) == ("<1@example.com>", int(SENT.timestamp()))
    assert (message.sender, message.sender_name) == ("greg@example.com", "Meyer, Greg")
    assert [(each.role, each.address, each.name) for each in message.recipients] == [
        ("to", "ann@example.com", "Lee, Ann"),
        ("cc", "bob@example.com", "bob@example.com"),
        ("bcc", "eve@example.com", ""),
    ]
    assert message.subject == "Über pumps"
    assert message.body.startswith("The pump costs 250 €.\nBring it.")
    assert "plan ü.txt" in message.body or "plan ü.txt" in [each.name for each in message.attachments]


def test_the_headers_of_a_received_message_are_kept() -> None:
    headers = (
        "Received: from x by y; Tue, 5 Mar 2024 09:30:05 +0100\r\nDelivered-To: ann@example.com\r\n"
        "Content-Type: multipart/mixed;\r\n boundary=x\r\nMIME-Version: 1.0\r\nFrom: Pat <pat@example.com>\r\n"
        "To: ann@example.com\r\nMessage-ID: <7@example.com>\r\nDate: Tue, 5 Mar 2024 09:30:00 +0100\r\n\r\n"
    )
    message = parse(SENT_MESSAGE | properties(32, {0x007D: headers, 0x0037: "x", 0x1000: "Text."}))
    assert (message.message_id, message.sender, message.utc_offset) == ("<7@example.com>", "pat@example.com", 60)
    assert [each.address for each in message.recipients] == ["ann@example.com", "bob@example.com", "eve@example.com"]
    assert message.subject == "x"
    assert message.body.startswith("Text.")


def test_addresses_that_the_headers_lack_are_read_from_the_properties() -> None:
    headers = "From: Pat\r\nTo: Ann Lee\r\nCc: Cy <cy@example.com>\r\nSubject: x\r\n"
    message = parse(SENT_MESSAGE | properties(32, {0x007D: headers, 0x0C1A: "Pat", 0x5D01: "pat@example.com"}))
    assert message.sender == "pat@example.com"
    assert [each.address for each in message.recipients] == ["ann@example.com", "cy@example.com", "eve@example.com"]


def test_html_is_read_if_there_is_no_plain_text() -> None:
    html = b"<p>The <b>pump</b> costs 250 euros.</p>"
    assert "The pump costs 250 euros." in parse(properties(32, {0x0037: "x", 0x1013: html, 0x3FDE: 65001})).body


def test_rich_text_is_read_if_there_is_no_other() -> None:
    rich_text = pytest.importorskip("compressed_rtf").compress(rb"{\rtf1 The lease ends.}")
    assert parse(properties(32, {0x0037: "x", 0x1009: rich_text})).body == "The lease ends."


def test_header_injection_is_not_possible() -> None:
    message = parse(
        properties(32, {0x0037: "a\r\nBcc: eve@example.com\r\n\r\nBody", 0x1000: "b", 0x0C1A: "x\nTo: y@z.com"})
    )
    assert message.recipients == []
    assert message.body == "b"


def test_other_files_of_office_and_broken_files_are_reported() -> None:
    data = compound_file(SENT_MESSAGE)
    for raw, reason in (
        (compound_file({"WordDocument": b"x" * 100}), ("no message",)),
        (data[:600], ("broken beyond reading",)),
        (data[:8], ("broken beyond reading",)),
    ):
        item = parse_item(RawFile("dir/1.msg", raw))
        assert isinstance(item, UnreadableItem)
        assert item.where == "dir/1.msg"
        assert item.reason in reason


def test_streams_that_overlap_are_rejected() -> None:
    data = bytearray(compound_file({f"s{number}": b"x" * 4000 for number in range(10)}))
    name = "s0".encode("utf-16-le")
    for number in range(10):
        place = data.index(name.replace(b"0", str(number).encode()))
        struct.pack_into("<Q", data, place + 120, 1 << 30)
    item = convert_msg(bytes(data), "x")
    assert isinstance(item, UnreadableItem)
    assert item.reason == "broken beyond reading"


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 255)), max_size=12))
def test_no_damage_fails(changes: list[tuple[int, int]]) -> None:
    data = bytearray(compound_file(SENT_MESSAGE))
    for place, value in changes:
        data[8 + place % (len(data) - 8)] = value
    assert isinstance(parse_item(RawFile("x", bytes(data))), ParsedMessage | UnreadableItem)


def attach(tree: Tree) -> Tree:
    """Return an attachment that is a message of Outlook."""
    return properties(8, {0x3001: "The lease", 0x3705: 5}) | {"__substg1.0_3701000D": tree}


def test_messages_attached_to_a_message_are_read() -> None:
    inner = properties(24, {0x001A: "IPM.Note", 0x0037: "The lease", 0x1000: "It is signed."})
    inner["__attach_version1.0_#00000000"] = properties(8, {0x3707: "plan.txt", 0x370E: "text/plain", 0x3701: b"dig"})
    outer = properties(32, {0x001A: "IPM.Note", 0x0037: "See below", 0x1000: "Look."})
    message = parse(outer | {"__attach_version1.0_#00000000": attach(inner)})
    assert message.body == (
        "Look.\n\n---- Forwarded message ----\nSubject: The lease\n\nIt is signed.\n\n[attachment: plan.txt]"
    )
    assert [(file.name, file.data) for file in message.files] == [("plan.txt", b"dig")]
    for _ in range(8):
        inner = properties(24, {0x0037: "Deeper"}) | {"__attach_version1.0_#00000000": attach(inner)}
    deep = parse(outer | {"__attach_version1.0_#00000000": attach(inner)})
    assert deep.body.startswith("Look.")
    assert deep.body.count("Subject: Deeper") == 5


@pytest.mark.parametrize("kind", ["application/vnd.ms-outlook", "application/octet-stream; name=lease.msg"])
def test_a_message_of_outlook_attached_to_another_message_is_read(kind: str) -> None:
    for data, expected in (
        (compound_file(SENT_MESSAGE), "The pump costs 250 €."),
        (compound_file({"WordDocument": b"x" * 100}), "[attachment: "),
    ):
        encoded = base64.encodebytes(data).decode()
        text = multipart("mixed", PLAIN, f"Content-Type: {kind}\nContent-Transfer-Encoding: base64\n\n{encoded}")
        assert text.startswith("Plain text.")
        assert expected in text


def test_texts_in_code_pages_are_decoded() -> None:
    for page in ({0x3FFD: 932}, {0x3FDE: 50220}):
        tree = properties(32, {0x001A: "IPM.Note", **page})
        tree |= {"__substg1.0_0037001E": "見積もり".encode("cp932"), "__substg1.0_1000001E": "本文です".encode("cp932")}
        assert (parse(tree).subject, parse(tree).body) == ("見積もり", "本文です")
    for number, data, text in (
        (99999, b"caf\xe9", "café"),
        (28591, b"caf\xe9", "café"),
        (28595, b"\xb4\xde\xdc", "Дом"),
    ):
        tree = properties(32, {0x001A: "IPM.Note", 0x3FFD: number}) | {"__substg1.0_0037001E": data}
        assert parse(tree).subject == text


def test_a_signed_message_is_read_as_it_was_sent() -> None:
    signed = 'Content-Type: multipart/signed; boundary="XX"\r\n\r\n' + mixed(PLAIN, PDF).replace("\n", "\r\n")
    tree = properties(32, {0x001A: "IPM.Note.SMIME.MultipartSigned", 0x0037: "x", 0x1000: "Plain text."})
    tree["__attach_version1.0_#00000000"] = properties(8, {0x3707: "smime.p7m", 0x3701: signed.encode()})
    assert parse(tree).body == "Plain text.\n\n[attachment: report.pdf]"


def test_time_and_place_of_an_appointment_are_read() -> None:
    names: Tree = {
        "__substg1.0_00020102": uuid.UUID("00062002-0000-0000-c000-000000000046").bytes_le,
        "__substg1.0_00030102": b"".join(
            struct.pack("<IHH", name, 3 << 1, number) for number, name in enumerate((0x820D, 0x820E, 0x8208))
        )
        + struct.pack("<IHH", 0x820D, 3 << 1 | 1, 9),  # has a name in text at this position
    }
    times: dict[int, str | bytes | int | datetime] = {0x8000: SENT, 0x8001: SENT.replace(hour=10)}
    tree = properties(32, {0x001A: "IPM.Appointment", 0x0037: "Review", 0x1000: "Bring it.", 0x8002: "Room 4", **times})
    expected = "Bring it.\n\nWhen: Tue 2024-03-05 08:30 to Tue 2024-03-05 10:30 UTC\nWhere: Room 4"
    assert parse(tree | {"__nameid_version1.0": names}).body == expected
    assert parse(tree).body == "Bring it."
    assert parse(tree | {"__nameid_version1.0": {"__substg1.0_00030102": b"x" * 99}}).body == "Bring it."
