"""List the parts of a message: its texts and files, also those inside forwarded, signed or wrapped messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from email.generator import BytesGenerator
from email.message import Message
from email.parser import BytesParser
from email.utils import collapse_rfc2231_value
from functools import cached_property
from io import BytesIO
from typing import Any, TypeAlias
from urllib.parse import unquote

from gumshoe.extraction.rtf import extract_rtf
from gumshoe.mail.alternatives import is_html_better, may_be_incomplete
from gumshoe.mail.calendar_text import decode_calendar
from gumshoe.mail.headers import decode_header_text, repair_part_headers, split_message
from gumshoe.mail.message import AttachedFile, clean_line
from gumshoe.mail.outlook import OLE_MAGIC, convert_msg
from gumshoe.mail.plain_text import convert_enriched, convert_rich, strip_pgp, unwrap_flowed
from gumshoe.mail.smime import EncryptedMessageError, open_smime
from gumshoe.mail.text import decode, find_html_charset, html_to_text, remove_invisible
from gumshoe.mail.tnef import is_tnef, read_tnef
from gumshoe.mail.transfer import decode_payload, find_transfer_encoding, read_raw_payload, split_uuencoded, split_yenc

CALENDAR_TYPES = {"text/calendar", "text/x-vcalendar", "application/ics"}
_HTML_START = re.compile(r"\s*<(?:html|!doctype html)", re.I)
_TAG_START = re.compile(r"\s*<(?:body|center|div|font|meta|p|span|style|table)\b[^<>]{0,500}>", re.I)
_TAG_END = re.compile(r"</(?:body|center|div|font|p|span|table)>\s*\Z", re.I)
_MAX_TAG = 100  # characters
_CALENDAR_START = re.compile(r"\s*BEGIN:VCALENDAR\b", re.I)
_FILE_TYPES = {"text/csv", "text/vcard", "text/x-vcard"}  # text, but not shown inline
_SMIME_TYPES = {"application/pkcs7-mime", "application/x-pkcs7-mime"}
_APPLE_DOUBLE = b"\x00\x05\x16\x07"  # a file with icon and window of another one on a Mac
_PGP_CONTROL = "application/pgp-encrypted"  # a part that only says that the next one is encrypted
_MAY_BE_ENCRYPTED = {"multipart/encrypted", "multipart/mixed"}  # mail servers turn the first into the second
_FORWARDED_TYPES = {"message/rfc822", "message/global"}
_FORWARDED_HEADING = "---- Forwarded message ----"
_MESSAGE_FILES = (".eml", ".msg")
_MESSAGE_TYPES = {"application/vnd.ms-outlook", "application/eml", "application/x-eml"}
_TNEF_TYPES = {"application/ms-tnef", "application/vnd.ms-tnef"}
_NEVER_TEXT = {"image", "audio", "video", "font"}
_MAX_OPENED = 50  # messages inside files of one message
_MAX_DEPTH = 10  # of such messages inside each other
_PERCENT_NAME = re.compile(r"(utf-8'[\w-]{0,20}')?([^%]*%[0-9a-f]{2}.*)", re.I | re.A)
_BOUNDARY = re.compile(rb"^--([^\r\n]{1,200}?)[ \t]*\r?\nContent-", re.M | re.I)
_MESSAGE_HEADERS = {"from", "to", "subject", "date", "message-id", "received"}
_OPENING_ERRORS = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)

MailMessage: TypeAlias = "Message[str, str]"


@dataclass(eq=False)
class Leaf:
    """A text or file of a message."""

    part: MailMessage | None = None
    fixed_text: str = ""
    """Text of a leaf that is no part of the message as it was sent."""
    is_inline: bool = False
    """True for text that is shown as the body."""
    is_extra: bool = False
    """True for text that repeats the body for other programs, and is shown only if it adds something."""
    is_named: bool = True
    """True for a file to list by name."""
    fixed_file: AttachedFile | None = None
    files: list[AttachedFile] = field(default_factory=list)
    """Files found in the text, once it is read."""

    @cached_property
    def media_type(self) -> str:
        return self.part.get_content_type() if self.part is not None else "text/plain"

    @cached_property
    def is_calendar(self) -> bool:
        is_text = self.is_inline and self.media_type == "text/plain"
        return self.media_type in CALENDAR_TYPES or (is_text and _CALENDAR_START.match(self.source) is not None)

    @cached_property
    def source(self) -> str:
        """Decoded text of the part as it was sent, e.g. HTML."""
        if self.part is None:
            return self.fixed_text
        data = decode_payload(self.part)
        if b"=ybegin " in data:
            data, files = split_yenc(data)
            self.files += [AttachedFile(clean_line(name), "application/octet-stream", each) for name, each in files]
        charset = read_parameter(self.part.get_content_charset)
        if self.media_type in CALENDAR_TYPES:
            return decode_calendar(data, charset)
        return decode(data, charset or (find_html_charset(data) if self.media_type == "text/html" else None))

    @cached_property
    def text(self) -> str:
        """Text as it is shown."""
        if self.part is None:
            return self.fixed_text
        source = self.source
        if self.media_type == "text/html" or _is_html(source):
            return html_to_text(source).strip()
        if self.media_type in {"text/rtf", "application/rtf"} and source.startswith("{\\rtf"):
            return remove_invisible(extract_rtf(decode_payload(self.part))).strip()
        if self.media_type == "text/enriched":
            return remove_invisible(convert_enriched(source)).strip()
        if self.media_type == "text/richtext":
            return remove_invisible(convert_rich(source)).strip()
        if str(read_parameter(lambda: self._parameter("format"))).lower() == "flowed":
            delete_space = str(read_parameter(lambda: self._parameter("delsp"))).lower() == "yes"
            source = unwrap_flowed(source, delete_space=delete_space)
        source, files = split_uuencoded(source)
        self.files += [AttachedFile(clean_line(name), "application/octet-stream", data) for name, data in files]
        return remove_invisible(strip_pgp(source)).strip()

    def _parameter(self, name: str) -> str | None:
        value = self.part.get_param(name) if self.part is not None else None
        return value if isinstance(value, str) else None

    @cached_property
    def file(self) -> AttachedFile:
        """The part as a file. Pictures, sound and films are not decoded, because they have no text."""
        if self.fixed_file is not None or self.part is None:
            return self.fixed_file or AttachedFile("", "text/plain", b"")
        name = read_name(self.part)
        if self.part.get_content_maintype() in _NEVER_TEXT:
            return AttachedFile(name or self.media_type, self.media_type, b"", problem="unknown type")
        charset = read_parameter(self.part.get_content_charset)
        return AttachedFile(name or self.media_type, self.media_type, decode_payload(self.part), charset)


def read_parameter(read: Callable[[], str | None]) -> str | None:
    """Return a parameter of a part's header, or None if its encoding (RFC 2231) is unknown."""
    try:
        return read()
    except ValueError:
        return None


def read_name(part: MailMessage) -> str:
    """Return the file name of a part on one line, or ""."""
    name = read_parameter(lambda: _read_extended_name(part) or part.get_filename()) or ""
    if "\x1b" in name:  # ISO-2022-JP that was never encoded
        name = decode(name.encode("utf-8", "surrogateescape"))
    return clean_line(_decode_percents(decode_header_text(name)))


def _read_extended_name(part: MailMessage) -> str:
    """Return the file name in the form of RFC 2231, which wins over a plain one for older programs, or ""."""
    for header, name in (("content-disposition", "filename"), ("content-type", "name")):
        if "*" in str(part.get(header, "")):
            parameters: list[tuple[str, Any]] = part.get_params([], header)
            values = [value for key, value in parameters if key.lower() == name]
            for value in values:
                if isinstance(value, tuple):
                    return collapse_rfc2231_value(value).strip()
            if values:
                break
    return ""


def _decode_percents(name: str) -> str:
    """Return a name without the percent encoding of RFC 2231, which programs use without saying so."""
    found = _PERCENT_NAME.fullmatch(name)
    if found is None:
        return name
    try:
        decoded = unquote(found[2], errors="strict")
    except UnicodeDecodeError:
        return name
    return decoded if found[1] or not decoded.isascii() else name  # 100%25.pdf may be meant


class PartLister:
    """List the leaves of one message. It opens a limited number of messages inside files."""

    def __init__(self) -> None:
        self._opened = 0

    def list_leaves(self, part: MailMessage, depth: int = 0) -> list[Leaf]:
        """Return the texts and files of a part, in order. Of alternatives, use the best one."""
        if not part.is_multipart():
            return self._list_single(part, depth)
        children = [child for child in part.get_payload() if isinstance(child, Message)]
        kind = part.get_content_type()
        is_encoded = kind.startswith("message/") and find_transfer_encoding(part) in {"base64", "quoted-printable"}
        if is_encoded and (reopened := self._reopen(part, children, depth)) is not None:
            return reopened
        if kind in _FORWARDED_TYPES and children:
            return [_forwarded_heading(children[0]), *self.list_leaves(children[0], depth)]
        if kind == "multipart/alternative":
            return _choose_alternative([self.list_leaves(child, depth) for child in children])
        if kind == "multipart/appledouble":
            children = [child for child in children if child.get_content_type() != "application/applefile"] or children
        leaves = []
        if kind.startswith("message/"):  # e.g. a report on delivery, which is blocks of fields
            blocks = ([f"{name}: {clean_line(str(value))}" for name, value in each.raw_items()] for each in children)
            leaves.append(Leaf(fixed_text="\n\n".join(map("\n".join, blocks)), is_inline=True, is_extra=True))
        elif kind in _MAY_BE_ENCRYPTED and any(child.get_content_type() == _PGP_CONTROL for child in children):
            children = [child for child in children if child.get_content_type() != _PGP_CONTROL]
            leaves.append(Leaf(fixed_text="[encrypted: PGP]", is_inline=True))
        return [*leaves, *(leaf for child in children for leaf in self.list_leaves(child, depth))]

    def _list_single(self, part: MailMessage, depth: int) -> list[Leaf]:
        kind, name = part.get_content_type(), read_name(part).lower()
        is_attached = part.get_content_disposition() == "attachment"
        if part.get_content_maintype() == "multipart" and (repaired := _repair_boundary(part)) is not None:
            return self.list_leaves(repaired, depth)
        if kind in _SMIME_TYPES or name.endswith(".p7m"):
            return self._open_smime(part, depth)
        is_renamed = name.endswith(".dat") and is_tnef(decode_payload(part))
        if kind in _TNEF_TYPES or name == "winmail.dat" or is_renamed:
            return self._open_tnef(decode_payload(part), read_name(part) or "winmail.dat", part, depth)
        if name.startswith("._") and decode_payload(part).startswith(_APPLE_DOUBLE):
            return []
        is_message = name.endswith(_MESSAGE_FILES) or kind in _MESSAGE_TYPES
        if is_message and (opened := self._open_file(decode_payload(part), part, depth)) is not None:
            return opened
        # A multipart without parts is mislabeled text.
        is_text = part.get_content_maintype() in {"text", "multipart"} or kind == "application/pgp"
        is_shown = is_text and not is_attached and kind not in CALENDAR_TYPES | _FILE_TYPES
        leaf = Leaf(part, is_inline=is_shown)
        leaf.is_inline = is_shown and not leaf.is_calendar
        return [leaf]

    def _reopen(self, part: MailMessage, children: list[MailMessage], depth: int) -> list[Leaf] | None:
        """Return the leaves of a message or report that is encoded as a whole.

        Return None if it cannot be read, or too many messages were opened.
        """
        written = BytesIO()
        try:
            BytesGenerator(written, mangle_from_=False, maxheaderlen=0).flatten(children[0])
        except (IndexError, *_OPENING_ERRORS):
            return None
        if not self._may_open(depth):
            return None
        whole = Message()
        whole["Content-Transfer-Encoding"] = find_transfer_encoding(part)
        whole.set_payload(written.getvalue().decode("ascii", "surrogateescape").lstrip("\n"))
        data = decode_payload(whole)
        if part.get_content_type() not in _FORWARDED_TYPES:
            report = b"Content-Type: %s\n\n" % part.get_content_type().encode() + data
            return self.list_leaves(_parse(report, part), depth + 1)
        return self._open_message(data, part, depth, _MESSAGE_HEADERS | {"content-type"})

    def _open_file(self, data: bytes, like: MailMessage, depth: int) -> list[Leaf] | None:
        """Return the leaves of a message in a file. Return None if it is no message, or too many were opened."""
        if not self._may_open(depth):
            return None
        if data.startswith(OLE_MAGIC):
            converted = convert_msg(data, "")
            if not isinstance(converted, bytes):
                return None
            data = converted
        return self._open_message(data, like, depth, _MESSAGE_HEADERS)

    def _open_message(self, data: bytes, like: MailMessage, depth: int, headers: set[str]) -> list[Leaf] | None:
        """Return the leaves of a message, or None if it has none of `headers` or cannot be parsed."""
        try:
            fields, content = split_message(data)
            if headers.isdisjoint(name for name, _ in fields):
                return None
            lines = "".join(f"{name}: {value}\n" for name, value in fields).encode("ascii", "surrogateescape")
            message = _parse(lines + b"\n" + content, like)
            return [_forwarded_heading(message), *self.list_leaves(message, depth + 1)]
        except _OPENING_ERRORS:
            return None

    def _may_open(self, depth: int) -> bool:
        """Count one more message inside a file. Return False if there are too many, or too deep inside each other."""
        self._opened += 1
        return depth < _MAX_DEPTH and self._opened <= _MAX_OPENED

    def _open_smime(self, part: MailMessage, depth: int) -> list[Leaf]:
        data, name = decode_payload(part), read_name(part) or "smime.p7m"
        problem = ""
        try:
            if self._may_open(depth):
                return self.list_leaves(_parse(open_smime(data), part), depth + 1)
        except EncryptedMessageError:
            problem = "encrypted"
        except ImportError:
            problem = "extractor missing: asn1crypto"
        except _OPENING_ERRORS:
            problem = "cannot be read"
        file = AttachedFile(name, part.get_content_type(), data, problem=problem)
        note = [Leaf(fixed_text="[encrypted: S/MIME]", is_inline=True)] if problem == "encrypted" else []
        return [*note, Leaf(fixed_file=file)]

    def _open_tnef(
        self, data: bytes, name: str, part: MailMessage, depth: int, is_attached: bool = False
    ) -> list[Leaf]:
        """Return the text and files in a winmail.dat, also those of messages that are attached inside it.

        `is_attached` is True for such a message.
        """
        try:
            found = read_tnef(data)
        except ValueError:
            return [Leaf(fixed_file=AttachedFile(name, part.get_content_type(), data, problem="cannot be read"))]
        text = found.plain
        if found.html and (not text.strip() or is_html_better(text, found.html)):
            text = found.html
        shown = remove_invisible(text.strip() or found.rtf).strip()
        if is_attached:
            shown = "\n".join([_FORWARDED_HEADING, *found.heading, "", shown]).strip()
        leaves = [Leaf(fixed_text=shown, is_inline=True, is_extra=True)] if shown else []
        for each in found.files:
            file_name = clean_line(each.name) or "attachment"
            media_type = each.media_type or "application/octet-stream"
            opened = None
            if is_tnef(each.data) and self._may_open(depth):
                opened = self._open_tnef(each.data, file_name, part, depth + 1, is_attached=True)
            elif file_name.lower().endswith(_MESSAGE_FILES):
                opened = self._open_file(each.data, part, depth)
            leaves += opened or [Leaf(fixed_file=AttachedFile(file_name, media_type, each.data))]
        if found.missing_library and not shown:
            problem = f"extractor missing: {found.missing_library}"
            leaves.append(Leaf(fixed_file=AttachedFile(name, part.get_content_type(), data, problem=problem)))
        return leaves


def _is_html(text: str) -> bool:
    """Return True for HTML that is declared to be plain text."""
    return _HTML_START.match(text) is not None or (
        _TAG_START.match(text) is not None and _TAG_END.search(text[-_MAX_TAG:]) is not None
    )


def _parse(data: bytes, like: MailMessage) -> MailMessage:
    message: MailMessage = BytesParser(policy=like.policy).parsebytes(repair_part_headers(data))
    return message


def _repair_boundary(part: MailMessage) -> MailMessage | None:
    """Parse a multipart again whose boundary is not the one that its header declares. None if it has none."""
    payload = read_raw_payload(part)
    found = _BOUNDARY.search(payload)
    if found is None or b'"' in found[1]:
        return None
    repaired = _parse(
        b'Content-Type: %s; boundary="%s"\n\n' % (part.get_content_type().encode(), found[1]) + payload, part
    )
    return repaired if repaired.is_multipart() else None


def _choose_alternative(choices: list[list[Leaf]]) -> list[Leaf]:
    """Return the leaves of the best alternative, then the attachments and calendars of the others.

    Plain text is preferred, unless it is blank, or says little of what the HTML says.
    """
    plain = next((choice for choice in choices if _is_plain(choice)), None)
    rich = [choice for choice in choices if choice is not plain and any(leaf.is_inline for leaf in choice)]
    best = plain
    if plain is None or (rich and _is_better(rich, plain)):
        best = next((choice for choice in rich if any(leaf.is_inline and leaf.text for leaf in choice)), plain)
    if best is None:
        best = next(iter(choices), [])
    others = [leaf for choice in choices if choice is not best for leaf in choice if not leaf.is_inline]
    kept = []
    for leaf in others:  # some programs put attachments into one of the alternatives
        leaf.is_named = leaf.part is None or _is_attached(leaf.part)
        if leaf.is_named or leaf.is_calendar:
            kept.append(leaf)
    return [*best, *kept]


def _is_attached(part: MailMessage) -> bool:
    """Return True for an attachment, and for a file that is shown inline, but not for a picture."""
    disposition = part.get_content_disposition()
    is_file = part.get_content_maintype() not in {"text", *_NEVER_TEXT} and bool(read_name(part))
    return disposition == "attachment" or (disposition == "inline" and is_file)


def _is_plain(choice: list[Leaf]) -> bool:
    """Return True for an alternative with text, all of it plain."""
    shown = [leaf for leaf in choice if leaf.is_inline]
    return all(leaf.media_type == "text/plain" for leaf in shown) and any(leaf.text for leaf in shown)


def _is_better(rich: list[list[Leaf]], plain: list[Leaf]) -> bool:
    """Return True if the HTML among the alternatives says much more than the plain text."""
    html = next((leaf for choice in rich for leaf in choice if leaf.media_type == "text/html" and leaf.is_inline), None)
    text = "\n".join(leaf.text for leaf in plain if leaf.is_inline)
    return html is not None and may_be_incomplete(text, html.source) and is_html_better(text, html.text)


def _forwarded_heading(forwarded: MailMessage) -> Leaf:
    """Return the headers of a message inside a message as text."""
    lines = [_FORWARDED_HEADING]
    for name in ("From", "To", "Date", "Subject"):
        for header, value in forwarded.raw_items():
            if header.lower() == name.lower():
                lines.append(f"{name}: {clean_line(decode_header_text(str(value)))}")
    return Leaf(fixed_text="\n".join(lines), is_inline=True)
