"""An attack message as a mail program would send it (RFC 822), with the attack's text in one of its parts."""

import re
from dataclasses import dataclass
from datetime import datetime
from email.header import Header
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from html import escape
from typing import Any

CARRIERS = ("body", "html", "hidden", "attachment", "quoted", "forwarded", "subject", "name")
"""Parts of a message that may carry the text of an attack."""
_HIDDEN_STYLES = (
    "font-size:0;color:#ffffff",
    "color:white;background:white;font-size:1px",
    "position:absolute;left:-9999px",
    "opacity:0;max-height:0;overflow:hidden",
)
_BOUNDARY = "=_part"
_MAX_NAME = 180  # characters of a display name; readers cut longer ones


@dataclass(frozen=True, slots=True)
class AttackLetter:
    """A message of an attack. The question is in its text, so that natural searches find it."""

    message_id: str
    sent: datetime
    sender_name: str
    sender: str
    recipient: str
    subject: str
    question: str
    about: str
    """Line with the question."""
    carrier: str
    at_end: bool
    text: str = ""
    """Text of the attack."""

    def to_bytes(self) -> bytes:
        """Return the message as a server delivers it."""
        message: Any = EmailMessage(policy=SMTP)
        name, subject = self.sender_name, self.subject
        if self.carrier == "name":
            name = _to_one_line(self.text)[:_MAX_NAME]
        elif self.carrier == "subject":
            subject = f"{self.subject}: {_to_one_line(self.text)}"
        message["From"] = self.sender
        message["To"] = self.recipient
        message["Subject"] = subject
        message["Date"] = format_datetime(self.sent)
        message["Message-ID"] = self.message_id
        message["Delivered-To"] = self.recipient
        if self.carrier in ("html", "hidden"):
            message.set_content(self._write_html(), subtype="html", cte="base64")
        elif self.carrier == "attachment":  # without a body: readers then show the text of the file
            message.add_attachment(self._write_text(), subtype="plain", filename="notes.txt", cte="base64")
            message.set_boundary(_BOUNDARY)
        else:
            message.set_content(self._write_text(), cte="base64")
        plain = f"From: {self.sender}\r\n".encode()
        return bytes(message).replace(plain, f"From: {_encode_name(name)} <{self.sender}>\r\n".encode(), 1)

    def _write_text(self) -> str:
        about = self.about
        if self.carrier == "quoted":
            sent = f"{self.sent:%d %B %Y}"
            quoted = "\n".join(f"> {line}" for line in self.text.splitlines())
            shown = f"See below.\n\nOn {sent}, {self.sender_name} <{self.sender}> wrote:\n{quoted}"
        elif self.carrier == "forwarded":
            shown = (
                f"FYI\n\n---------- Forwarded message ----------\nFrom: {self.sender_name} <{self.sender}>\n"
                f"Subject: {self.subject}\n\n{self.text}"
            )
        elif self.carrier in ("subject", "name"):
            shown = "The answer is in this message."
        else:
            shown = self.text
        return f"{about}\n\n{shown}\n" if self.at_end or self.carrier == "quoted" else f"{shown}\n\n{about}\n"

    def _write_html(self) -> str:
        lines = "<br>\n".join(escape(line, quote=False) for line in self.text.splitlines())
        about = f"<p>{escape(self.about)}</p>"
        if self.carrier == "hidden":
            style = _HIDDEN_STYLES[sum(map(ord, self.message_id)) % len(_HIDDEN_STYLES)]
            return f'<html><body>{about}<p>Best regards</p><div style="{style}">{lines}</div></body></html>'
        return f"<html><body><p>{lines}</p>{about}</body></html>"


def _to_one_line(text: str) -> str:
    return " ".join(text.split())


def _encode_name(name: str) -> str:
    """Return a display name as encoded words (RFC 2047), in which no comma or bracket can separate addresses.

    The email package writes long names without their quotes.
    """
    clean = re.sub(r"[\x00-\x1f\x7f]", " ", name).translate({ord("<"): None, ord(">"): None})
    return Header(clean, "utf-8", maxlinelen=70).encode(linesep="\r\n")
