"""Folders of IMAP accounts: which ones to read, and the states of their messages."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gumshoe.errors import UsageError
from gumshoe.mail.imap_account import ImapAccount
from gumshoe.mail.message import State
from gumshoe.mail.states import find_folder_state, is_sent_folder

_NOT_FOLDERS = {"\\noselect", "\\nonexistent"}
_VIEWS = {"\\all", "\\flagged", "\\important"}  # special uses of folders that show the messages of others (RFC 6154)
_USES: dict[State, str] = {"trash": "\\trash", "spam": "\\junk"}
"""Special use of the folders whose messages have a state."""
_SENT = "\\sent"
"""Special use of folders for sent mail."""


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder as the server lists it."""

    name: bytes
    """Name in the encoding of IMAP (modified UTF-7)."""
    title: str
    delimiter: str
    flags: frozenset[str]
    """Flags in lower case, e.g. `\\noselect` and those of RFC 6154, such as `\\trash`."""


@dataclass(frozen=True, slots=True)
class ImapFolder:
    """A folder to read."""

    name: bytes
    """Name in the encoding of IMAP."""
    title: str
    state: State = ""
    is_sent: bool = False
    """True if it is a folder for sent mail."""


def choose_folders(
    account: ImapAccount, wanted: Sequence[str], listed: Sequence[ListedFolder], is_gmail: bool
) -> list[ImapFolder]:
    """Return the folders to read, the inbox first, with the states of their messages.

    By default all except trash and junk, and except folders that only show messages of others, such as favourites. On
    Gmail, where folders are labels, the folder with all mail contains each message once, and the others are left out.

    Raises:
        UsageError: if a wanted folder does not exist, or no folder can be read.
    """
    folders = [each for each in listed if not each.flags & _NOT_FOLDERS]
    states = _find_states(folders)
    everything = {each.title for each in folders if "\\all" in each.flags} if is_gmail else set()
    views = {each.title for each in folders if each.flags & _VIEWS} - everything
    titles = {each.title for each in folders}
    usual = (everything or titles - views) - states.keys()
    chosen: set[str] = set() if wanted else usual
    for each in wanted:
        found = {title for title in titles if _matches(title, each)}
        if each == "*":
            found = usual | states.keys()
        if not found:
            raise _missing_folder(account, each, titles)
        chosen |= found
    if not chosen:
        raise _missing_folder(account, "INBOX", ())
    sent = [each for each in folders if _SENT in each.flags] or [each for each in folders if is_sent_folder(each.title)]
    selected = (
        ImapFolder(each.name, each.title, states.get(each.title, ""), each in sent)
        for each in folders
        if each.title in chosen
    )
    return sorted(selected, key=lambda each: (each.title.upper() != "INBOX", each.title))


def _matches(title: str, wanted: str) -> bool:
    """Return True if a folder has the wanted name, in which `*` stands for any characters."""
    if wanted.upper() == "INBOX":
        return title.upper() == "INBOX"
    return re.fullmatch(".*".join(map(re.escape, wanted.split("*"))), title, re.S) is not None


def _find_states(folders: Sequence[ListedFolder]) -> dict[str, State]:
    """Return the states of trash and junk folders, and of the folders inside them.

    If the server does not tell which folders these are, their names do.
    """
    states: dict[str, State] = {}
    for state, use in _USES.items():
        roots = [each for each in folders if use in each.flags]
        inside = tuple(f"{each.title}{each.delimiter}" for each in roots if each.delimiter)
        for each in folders:
            if each in roots or each.title.startswith(inside) or (not roots and find_folder_state(each.title) == state):
                states[each.title] = state
    return states


def _missing_folder(account: ImapAccount, wanted: str, titles: Iterable[str]) -> UsageError:
    existing = ", ".join(sorted(titles)[:20]) or "none"
    return UsageError(
        "mail.imap-no-folder", f"{account.uri}: the folder {wanted!r} does not exist; the account has {existing}"
    )
