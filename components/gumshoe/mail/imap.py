"""Mail on IMAP servers: `imap://USER@HOST/FOLDER`. It is only read, over TLS, and can be read on from a position."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import TYPE_CHECKING, TypeVar

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.installation import install_command
from gumshoe.mail.imap_account import (
    CommandRefusedError,
    ConnectionLostError,
    ImapAccount,
    TemporaryRefusalError,
    parse_imap_uri,
)
from gumshoe.mail.imap_folders import ImapFolder, choose_folders
from gumshoe.mail.items import MailSource, RawMessage
from gumshoe.mail.message_files import MAX_MESSAGE_SIZE

if TYPE_CHECKING:
    from gumshoe.mail.imap_session import ImapSession, MessageFacts

Result = TypeVar("Result")
Position = Mapping[str, tuple[int, ...]]
"""UIDVALIDITY, last UID that was read, and UIDs up to it that the server did not deliver, by folder."""

_DESCRIBED_AT_ONCE = 500  # messages; their UIDs fit a command of 8,192 bytes
_FETCHED_AT_ONCE = 8 << 20  # bytes, unless a message is larger
_TRIES = 5  # of connecting
_TRIES_OF_ONE = 3  # of a command on which the connection was lost, or that was refused for a while
_MAX_FAILURES = 3  # messages in a row that cannot be downloaded
_FIRST_PAUSE = 1.0  # seconds; doubled from try to try
_UNDELIVERED = "cannot be downloaded"


@dataclass(frozen=True, slots=True)
class ImapMail(MailSource):
    """Folders of an IMAP account."""

    account: ImapAccount
    folders: list[ImapFolder]
    position: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """See `Position` and `MailSource.read_after`."""

    @classmethod
    def open(cls, uri: str, _: str) -> "ImapMail":
        """Open the folders that a URI names.

        Without a folder, all except trash and junk are read. `*` stands for any characters; `/*` includes all folders.

        Raises:
            UsageError: if the URI, the login or a folder is wrong, or the server offers no trusted TLS.
            UnavailableError: if the server cannot be reached.
        """
        account, wanted = parse_imap_uri(uri)
        connection = _Connection(account, tries=1)
        try:
            session = connection.session()
            return cls(uri, None, account, choose_folders(account, wanted, session.list_folders(), session.is_gmail))
        except (ConnectionLostError, CommandRefusedError) as error:
            raise _unavailable(account, error) from None
        finally:
            connection.close()

    def read_raw(self, advance: Callable[[int], object]) -> Iterator[RawMessage | UnreadableItem]:
        """Yield the messages by folder and UID. `advance` is called with the number of bytes of each message.

        Raises:
            UsageError: if the login is refused.
            UnavailableError: if the server cannot be reached, or fails repeatedly.
        """
        return self.read_after(None, advance)

    def read_after(
        self, position: Position | None, advance: Callable[[int], object]
    ) -> Iterator[RawMessage | UnreadableItem]:
        """Yield the messages after a position, and before them those that were not delivered and now are.

        Errors are those of `read_raw`. Folders that are not in the position, or whose UIDVALIDITY has changed, are
        read from their start.
        """
        old = position or {}
        self.position.clear()
        self.position.update({each.title: old[each.title] for each in self.folders if each.title in old})
        connection = _Connection(self.account, tries=_TRIES)
        try:
            for folder in self.folders:
                yield from self._read_folder(connection, folder, advance, old)
        except (ConnectionLostError, CommandRefusedError) as error:
            raise _unavailable(self.account, error) from None
        finally:
            connection.close()

    def _read_folder(
        self, connection: "_Connection", folder: ImapFolder, advance: Callable[[int], object], old: Position
    ) -> Iterator[RawMessage | UnreadableItem]:
        try:
            uidvalidity = connection.examine(folder)
        except CommandRefusedError as error:
            where = self.account.folder_uri(folder.title)
            yield UnreadableItem(where, "folder cannot be opened", str(error))
            return
        old_validity, last, *undelivered = old.get(folder.title, (0, 0))
        if uidvalidity == 0 or uidvalidity != old_validity:
            last, undelivered = 0, []
        # The range includes the last message even if its UID is lower.
        found = connection.run(lambda session: session.search("UID", f"{last + 1}:*"))
        uids = [uid for uid in found if uid > last]
        self.position[folder.title] = uidvalidity, last, *undelivered
        for item in self._read_undelivered(connection, folder, uidvalidity, undelivered):
            advance(len(item.raw) if isinstance(item, RawMessage) else 0)
            self.position[folder.title] = uidvalidity, last, *undelivered
            yield item
        self.position[folder.title] = uidvalidity, last, *undelivered
        for start in range(0, len(uids), _DESCRIBED_AT_ONCE):
            window = uids[start : start + _DESCRIBED_AT_ONCE]
            waiting, seen = deque(window), set[int]()
            for uid, item in self._read_window(connection, folder, uidvalidity, window):
                advance(len(item.raw) if isinstance(item, RawMessage) else 0)
                if _is_undelivered(item):
                    undelivered.append(uid)
                seen.add(uid)
                while waiting and waiting[0] in seen:  # one that was left out at first comes last
                    last = waiting.popleft()
                self.position[folder.title] = uidvalidity, last, *undelivered
                yield item
            self.position[folder.title] = uidvalidity, window[-1], *undelivered

    def _read_undelivered(
        self, connection: "_Connection", folder: ImapFolder, uidvalidity: int, uids: list[int]
    ) -> Iterator[RawMessage | UnreadableItem]:
        """Yield the messages that an earlier reading did not get, if the server delivers them now.

        `uids` is changed to those that are still not delivered. Those that failed now are at its end: if several fail
        in a row, the others are not tried before the next reading, since the server may refuse some for ever.
        """
        for uid in list(uids):
            uids.remove(uid)
            try:
                items = [item for _, item in self._read_window(connection, folder, uidvalidity, [uid])]
            except (ConnectionLostError, CommandRefusedError):
                uids.append(uid)
                break
            if any(map(_is_undelivered, items)):
                uids.append(uid)
            else:
                yield from items
        if uids:
            connection.forget_failures()  # they say nothing about new messages

    def _read_window(
        self, connection: "_Connection", folder: ImapFolder, uidvalidity: int, uids: Sequence[int]
    ) -> Iterator[tuple[int, RawMessage | UnreadableItem]]:
        facts = connection.run(lambda session: session.describe(uids))
        missing = set(uids)
        for batch in _divide(facts):
            sizes = {uid: facts[uid].size for uid in batch if facts[uid].size <= MAX_MESSAGE_SIZE}
            contents = dict(connection.download(sizes))
            for uid in batch:
                where = self.account.item_uri(folder.title, uidvalidity, uid)
                if uid not in sizes:
                    detail = f"{facts[uid].size:,} bytes; the maximum is {MAX_MESSAGE_SIZE:,}"
                    yield uid, UnreadableItem(where, "message too large", detail)
                elif uid in contents:
                    yield uid, _to_item(where, contents[uid], facts[uid], folder)
            missing -= {*contents, *(set(batch) - sizes.keys())}
        for uid in connection.find_existing(sorted(missing)):  # the others were deleted meanwhile
            where = self.account.item_uri(folder.title, uidvalidity, uid)
            item: RawMessage | UnreadableItem = UnreadableItem(where, _UNDELIVERED, "the server leaves it out")
            for _, content in connection.download({uid: facts[uid].size}) if uid in facts else ():
                item = _to_item(where, content, facts[uid], folder)
            yield uid, item


def _divide(facts: "Mapping[int, MessageFacts]") -> Iterator[list[int]]:
    """Divide messages into batches that are downloaded at once."""
    batch: list[int] = []
    size = 0
    for uid, each in facts.items():
        costs = each.size if each.size <= MAX_MESSAGE_SIZE else 0
        if batch and size + costs > _FETCHED_AT_ONCE:
            yield batch
            batch, size = [], 0
        batch.append(uid)
        size += costs
    if batch:
        yield batch


def _to_item(
    where: str, content: bytes | str, facts: "MessageFacts", folder: ImapFolder
) -> RawMessage | UnreadableItem:
    if isinstance(content, str):
        return UnreadableItem(where, _UNDELIVERED, content)
    date = format_datetime(facts.received) if facts.received else ""
    return RawMessage(where, content, date, "deleted" if facts.is_deleted else folder.state, folder.is_sent)


def _is_undelivered(item: RawMessage | UnreadableItem) -> bool:
    return isinstance(item, UnreadableItem) and item.reason == _UNDELIVERED


class _Connection:
    """Sessions of an account, one after the other. If one is lost, the next continues in the same folder."""

    def __init__(self, account: ImapAccount, tries: int) -> None:
        self._account = account
        self._tries = tries
        self._session: ImapSession | None = None
        self._folder: ImapFolder | None = None
        self._uidvalidity = 0
        self._failures = 0  # messages in a row

    def session(self) -> "ImapSession":
        """Return the present session, or connect. Requires IMAPClient.

        Raises:
            UsageError: if the login is refused, or the server offers no trusted TLS.
            UnavailableError: if the server cannot be reached in several tries.
        """
        number = 0
        while self._session is None:
            number += 1
            try:
                self._session = _open_session(self._account)
                self._reopen_folder(self._session)
            except ConnectionLostError as error:
                self._drop()
                if number >= self._tries:
                    raise _unavailable(self._account, error) from None
                time.sleep(_FIRST_PAUSE * 2 ** (number - 1))
        return self._session

    def examine(self, folder: ImapFolder) -> int:
        """Open a folder and return its UIDVALIDITY."""
        self._folder = None
        self._uidvalidity = self.run(lambda session: session.examine(folder.name))
        self._folder = folder
        return self._uidvalidity

    def run(self, command: "Callable[[ImapSession], Result]", tries: int = _TRIES_OF_ONE) -> Result:
        """Return the result of a command.

        It is repeated in a new session if the connection is lost, and after a pause if it is refused for a while.

        Raises:
            ConnectionLostError: if it is lost in each try.
            CommandRefusedError: if the server refuses the command, for a while in each try.
        """
        number = 0
        while True:
            number += 1
            session = self.session()
            try:
                return command(session)
            except ConnectionLostError:
                self._drop()
                if number >= tries:
                    raise
            except TemporaryRefusalError:
                if number >= tries:
                    raise
                time.sleep(_FIRST_PAUSE * 2 ** (number - 1))

    def download(self, sizes: Mapping[int, int]) -> Iterator[tuple[int, bytes | str]]:
        """Yield the content of messages by UID, or the reason why one cannot be downloaded.

        If messages cannot be downloaded together, each is downloaded alone, so that one which the server cannot send
        does not keep the others out.

        Args:
            sizes: size of each message in bytes, as the server states it, by UID.

        Raises:
            ConnectionLostError, CommandRefusedError: if several in a row cannot be downloaded.
        """
        uids = list(sizes)
        tries = 1 if len(uids) > 1 else _TRIES_OF_ONE
        try:
            found = self.run(lambda session: session.fetch(uids, sum(sizes.values())), tries) if uids else {}
        except (ConnectionLostError, CommandRefusedError) as error:
            if len(uids) > 1:
                for uid in uids:
                    yield from self.download({uid: sizes[uid]})
                return
            self._failures += 1
            if self._failures > _MAX_FAILURES:
                raise
            yield uids[0], str(error)
            return
        self._failures = 0
        yield from ((uid, "no content" if content is None else content) for uid, content in found.items())

    def forget_failures(self) -> None:
        """Count failures in a row from 0."""
        self._failures = 0

    def find_existing(self, uids: Sequence[int]) -> list[int]:
        """Return those UIDs whose messages exist."""
        return self.run(lambda session: session.search("UID", ",".join(map(str, uids)))) if uids else []

    def close(self) -> None:
        """Log out."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _drop(self) -> None:
        if self._session is not None:
            self._session.drop()
            self._session = None

    def _reopen_folder(self, session: "ImapSession") -> None:
        if self._folder is None:
            return
        try:
            if session.examine(self._folder.name) == self._uidvalidity:
                return
        except TemporaryRefusalError as error:
            raise ConnectionLostError(str(error)) from None
        except CommandRefusedError:  # it no longer exists
            pass
        raise UnavailableError(
            "mail.imap-unavailable",
            f"{self._account.uri}: the folder {self._folder.title!r} was replaced while reading; run this again",
        )


def _open_session(account: ImapAccount) -> "ImapSession":
    try:
        from gumshoe.mail.imap_session import ImapSession
    except ModuleNotFoundError as error:
        raise UsageError(
            "mail.not-installed", f"imap: sources require {error.name}: {install_command(extra='mail')}"
        ) from None
    return ImapSession(account)


def _unavailable(account: ImapAccount, error: Exception) -> UnavailableError:
    return UnavailableError(
        "mail.imap-unavailable", f"{account.uri}, port {account.port}: the server failed: {error}; run this again later"
    )
