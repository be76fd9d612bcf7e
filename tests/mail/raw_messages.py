"""Parse messages written as text."""

from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.rfc822 import parse_message

PLAIN = "Content-Type: text/plain\n\nPlain text."
HTML = "Content-Type: text/html\n\n<p>HTML <b>text</b>.</p>"
PDF = 'Content-Type: application/pdf; name="report.pdf"\nContent-Transfer-Encoding: base64\n\nJVBERi0=\n'


def parse(raw: bytes | str, fallback_date: str = "") -> ParsedMessage:
    """Parse a message that must be readable. Text is encoded as UTF-8."""
    message = parse_message(raw.encode() if isinstance(raw, str) else raw, "here", fallback_date)
    assert isinstance(message, ParsedMessage)
    return message


def message_with(headers: str, content: bytes | str) -> ParsedMessage:
    """Return a message with these headers for its content."""
    content = content.encode() if isinstance(content, str) else content
    return parse(b"From: ann@example.com\nMIME-Version: 1.0\n" + headers.encode() + b"\n\n" + content)


def body(headers: str, content: bytes | str) -> str:
    return message_with(headers, content).body


def multipart_message(kind: str, *parts: str) -> ParsedMessage:
    return message_with(f"Content-Type: multipart/{kind}; boundary=XX", mixed(*parts))


def multipart(kind: str, *parts: str) -> str:
    return multipart_message(kind, *parts).body


def mixed(*parts: str, boundary: str = "XX") -> str:
    return "".join(f"--{boundary}\n{part}\n" for part in parts) + f"--{boundary}--\n"
