"""The registry of hostile messages, and how they are put together."""

import base64
import io
import zipfile
from collections.abc import Callable

TOKEN = "findme"
"""A word in the text of each message that has readable text. A search must find it."""
MAKERS: dict[str, Callable[[], bytes]] = {}
"""A function for each message, by name."""


def hostile(name: str) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    """Register a function that makes a message."""

    def add(make: Callable[[], bytes]) -> Callable[[], bytes]:
        MAKERS[name] = make
        return make

    return add


def message_id(name: str) -> str:
    """Return the id of a message that has headers."""
    return f"<{name.replace(' ', '-')}@hostile.example>"


def head(name: str, *more: str, subject: str = "Hostile", to: str = "bob@example.com", date: str = "") -> bytes:
    """Return the headers of a message, with the blank line after them."""
    lines = [
        "From: mallory@example.com",
        f"To: {to}",
        f"Subject: {subject}",
        f"Message-ID: {message_id(name)}",
        f"Date: {date or 'Tue, 5 Mar 2024 12:00:00 +0000'}",
        "MIME-Version: 1.0",
        *more,
    ]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def multipart(name: str, *parts: bytes, kind: str = "mixed") -> bytes:
    """Return a message of several parts."""
    body = b"".join(b"--XX\r\n" + part + b"\r\n" for part in parts)
    return head(name, f'Content-Type: multipart/{kind}; boundary="XX"') + body + b"--XX--\r\n"


def plain(text: str = TOKEN, more: str = "") -> bytes:
    """Return a part with text. `more` are other headers of it."""
    return f"Content-Type: text/plain; charset=utf-8\r\n{more}\r\n{text}\r\n".encode()


def html_message(name: str, html: str) -> bytes:
    """Return a message of HTML alone."""
    return head(name, "Content-Type: text/html; charset=utf-8") + html.encode()


def attached(name: str, data: bytes, kind: str = "application/octet-stream") -> bytes:
    """Return a part with an attached file."""
    described = f'Content-Type: {kind}; name="{name}"\r\nContent-Disposition: attachment; filename="{name}"\r\n'
    return described.encode() + b"Content-Transfer-Encoding: base64\r\n\r\n" + base64.encodebytes(data)


def zip_file(files: dict[str, bytes]) -> bytes:
    """Return a zip archive, which is always the same."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
