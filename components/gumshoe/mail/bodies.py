"""Extract the text of a message and its attached files from its MIME parts."""

from __future__ import annotations

import re
from email.message import Message

from gumshoe.mail.calendar_text import calendar_to_text
from gumshoe.mail.message import AttachedFile
from gumshoe.mail.parts import Leaf, PartLister

_WORD = re.compile(r"\w+")
_CONTROLS = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_MAX_SAMPLE = 4096  # characters
_CHARACTERS_PER_CONTROL = 20
_MAX_EXTRAS = 20  # calendars and other texts that are compared with the body
_KNOWN_SHARE = 0.9  # of the words of a text that repeats the body


def extract_body(message: Message[str, str]) -> tuple[str, list[AttachedFile]]:
    """Return the text of a message and its attached files.

    The text consists of the inline parts, otherwise of the text attachments, then of calendars as lines and of the
    attachments' names.
    """
    leaves = PartLister().list_leaves(message)
    body = "\n\n".join(leaf.text for leaf in leaves if leaf.is_inline and not leaf.is_extra and leaf.text)
    files = [file for leaf in leaves if leaf.is_inline for file in leaf.files]
    attached: list[Leaf] = []
    extras = [leaf for leaf in leaves if leaf.is_calendar or leaf.is_extra][:_MAX_EXTRAS]
    for leaf in leaves:
        lines = _read_extra(leaf) if leaf in extras else ""
        if lines and _adds_words(lines, body):
            body = f"{body}\n\n{lines}".lstrip()
        if leaf.is_inline or (lines and not _is_file(leaf)):
            continue
        if leaf.is_named:
            files.append(leaf.file)
        if not lines and leaf.part is not None and leaf.part.get_content_maintype() == "text":
            attached.append(leaf)
    body = body or "\n\n".join(leaf.text for leaf in attached if leaf.text and not _is_binary(leaf.text))
    return "\n\n".join(filter(None, [body, *(f"[attachment: {file.name}]" for file in files)])), files


def _is_binary(text: str) -> bool:
    """Return True for a file that is only declared to be text, e.g. an encrypted one."""
    start = text[:_MAX_SAMPLE]
    return len(_CONTROLS.findall(start)) * _CHARACTERS_PER_CONTROL > len(start)


def _is_file(leaf: Leaf) -> bool:
    """Return True if a calendar is attached as a file, apart from being shown."""
    return leaf.part is not None and bool(leaf.part.get_filename() or leaf.part.get_content_disposition())


def _read_extra(leaf: Leaf) -> str:
    """Return the text of a leaf that repeats the body, a calendar as lines, or "" if it cannot be read."""
    if leaf.is_extra:
        return leaf.text
    try:
        return calendar_to_text(leaf.source)
    except (ValueError, ImportError):
        return ""


def _adds_words(text: str, body: str) -> bool:
    words = set(_WORD.findall(text.casefold()))
    return len(words & set(_WORD.findall(body.casefold()))) < _KNOWN_SHARE * len(words)
