"""Read-only IMAP sessions over TLS, bounded in time and size. Requires IMAPClient; `imap` is the source of mail."""

import imaplib
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from imapclient import IMAPClient
from imapclient.datetime_util import parse_to_datetime
from imapclient.imap_utf7 import decode as decode_utf7
from imapclient.response_parser import parse_response

from gumshoe.errors import UsageError
from gumshoe.mail.imap_account import (
    CommandRefusedError,
    ConnectionLostError,
    ImapAccount,
    ImapSecret,
    TemporaryRefusalError,
    find_secret,
)
from gumshoe.mail.imap_folders import ListedFolder

_IDLE_SECONDS = 60.0  # maximum wait for the next bytes
_COMMAND_SECONDS = 120.0  # maximum time of a command, plus its content at the slowest rate
_SLOWEST_RATE = 20_000  # bytes per second
_COMMAND_BYTES = 32 << 20  # maximum size of an answer, plus twice its expected content
_LOGOUT_SECONDS, _LOGOUT_BYTES = 5.0, 1 << 20
_TEMPORARY = ("[UNAVAILABLE]", "[INUSE]", "[LIMIT]", "[SERVERBUG]")  # RFC 5530
_SPECIAL_USES = {"\\trash", "\\junk", "\\sent", "\\all"}
_RECOGNIZED = 8  # first characters of a secret by which a part of it is recognized
_BYTES = re.compile(r"""b(["'])(.*)\1""", re.S)  # as libraries show answers
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)  # answers that cannot be parsed


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """Size, date and flags of a message on the server."""

    size: int
    """Bytes, as the server states it."""
    received: datetime | None
    is_deleted: bool


class ImapSession:
    """A session that only reads: folders are opened with EXAMINE, messages are fetched with BODY.PEEK.

    Args:
        account: whose mail to read. Its secret is read from the environment.

    Raises:
        UsageError: if there is no TLS, the certificate is not trusted, or the login is refused.
        ConnectionLostError: if the server cannot be reached.
    """

    def __init__(self, account: ImapAccount) -> None:
        self._account = account
        secret = find_secret(account)
        with _explain_connection(account):
            self._client = _BoundedClient(account)
        try:
            self._log_in(secret)
        except BaseException:
            self._client.drop()
            raise

    @property
    def is_gmail(self) -> bool:
        """True if folders are labels, and only the folder with all mail has each message."""
        with self._limits():
            return bool(self._client.has_capability("X-GM-EXT-1"))

    def list_folders(self) -> list[ListedFolder]:
        """Return all folders with their special uses."""
        with self._limits():
            folders = self._list('""')
            if any(each.flags & _SPECIAL_USES for each in folders) or not self._client.has_capability("SPECIAL-USE"):
                return folders
            uses = {each.name: each.flags for each in self._list('(SPECIAL-USE) ""')}
            return [replace(each, flags=each.flags | uses.get(each.name, frozenset())) for each in folders]

    def examine(self, folder: bytes) -> int:
        """Open a folder without write access, and return its UIDVALIDITY, or 0 if its UIDs do not persist."""
        if set(folder) & set(b"\r\n\0"):
            raise CommandRefusedError("the name of the folder contains line ends")
        quoted = folder.replace(b"\\", rb"\\").replace(b'"', rb"\"")
        with self._limits():
            _check(*self._client.connection.select(b'"' + quoted + b'"', readonly=True))  # type: ignore[arg-type]
            _, found = self._client.connection.response("UIDVALIDITY")
            return int(found[-1] or 0)

    def search(self, *criteria: str) -> list[int]:
        """Return the UIDs in the open folder that match, in ascending order."""
        with self._limits():
            lines = _check(*self._client.connection.uid("SEARCH", *criteria))
            return sorted({int(uid) for line in lines for uid in (line or b"").split()})

    def describe(self, uids: Sequence[int]) -> dict[int, MessageFacts]:
        """Return facts of messages by UID. Messages that no longer exist are missing."""
        with self._limits():
            found = self._fetch(uids, "(UID FLAGS RFC822.SIZE INTERNALDATE)")
            return {uid: _parse_facts(found[uid]) for uid in sorted(found) if b"RFC822.SIZE" in found[uid]}

    def fetch(self, uids: Sequence[int], expected: int) -> dict[int, bytes | None]:
        """Return the content of messages by UID; None for one without. Messages that no longer exist are missing.

        Args:
            uids: messages to fetch.
            expected: their total size in bytes, as the server states it. Much larger answers are not read.
        """
        with self._limits(expected):
            found = self._fetch(uids, "(UID BODY.PEEK[])")
        contents = {uid: fields[b"BODY[]"] for uid, fields in found.items() if b"BODY[]" in fields}
        return {uid: content if isinstance(content, bytes) else None for uid, content in contents.items()}

    def _fetch(self, uids: Sequence[int], items: str) -> dict[int, dict[bytes, Any]]:
        """Return the items of messages by UID.

        IMAPClient's own `fetch` takes the number of a message for its UID in unsolicited answers, which have none.
        """
        answers = parse_response(_check(*self._client.connection.uid("FETCH", ",".join(map(str, uids)), items)))
        found: dict[int, dict[bytes, Any]] = {}
        wanted = set(uids)
        for values in answers[1::2]:  # after the number of each message
            fields = {key.upper(): value for key, value in zip(values[::2], values[1::2], strict=True)}
            if fields.get(b"UID") in wanted:
                found.setdefault(fields[b"UID"], {}).update(fields)
        return found

    def close(self) -> None:
        """Log out and close the connection."""
        with suppress(ConnectionLostError, CommandRefusedError), self._limits():
            self._client.connection.allow(_LOGOUT_SECONDS, _LOGOUT_BYTES)
            self._client.logout()
        self.drop()

    def drop(self) -> None:
        """Close the connection without waiting for the server."""
        self._client.drop()

    def _list(self, reference: str) -> list[ListedFolder]:
        data = _check(*self._client.connection.list(reference, "*"))
        values = parse_response([each for each in data if each])
        return [_parse_folder(*values[start : start + 3]) for start in range(0, len(values), 3)]

    def _log_in(self, secret: ImapSecret) -> None:
        with _explain_login(self._account, secret), self._limits():
            if secret.is_token:
                content = f"user={self._account.user}\1auth=Bearer {secret.value}\1\1".encode()
                self._client.sasl_login("XOAUTH2", _answer_once(content))
            elif self._client.has_capability("AUTH=PLAIN"):
                self._client.sasl_login("PLAIN", _answer_once(f"\0{self._account.user}\0{secret.value}".encode()))
            elif self._account.user.isascii() and secret.value.isascii():
                quoted = self._account.user.replace("\\", "\\\\").replace('"', '\\"')
                self._client.login(f'"{quoted}"', secret.value)  # which quotes the password only
            else:
                raise CommandRefusedError("the server takes only ASCII letters in names and passwords")

    @contextmanager
    def _limits(self, expected: int = 0) -> Iterator[None]:
        """Limit the time and the size of the commands in the block, and translate the errors of libraries."""
        self._client.connection.allow(_COMMAND_SECONDS + expected / _SLOWEST_RATE, _COMMAND_BYTES + 2 * expected)
        try:
            yield
        except (imaplib.IMAP4.abort, OSError, *_MALFORMED) as error:
            raise ConnectionLostError(describe_error(error)) from None
        except imaplib.IMAP4.error as error:
            raise _refusal(error) from None


class _BoundedClient(IMAPClient):  # type: ignore[misc]
    """IMAPClient on a `_BoundedConnection`."""

    def __init__(self, account: ImapAccount) -> None:
        self._account = account
        super().__init__(account.host, account.port, timeout=_IDLE_SECONDS)
        self._imap.debug = 0  # the library formats every answer for its log, messages included

    @property
    def connection(self) -> "_BoundedConnection":
        connection: _BoundedConnection = self._imap
        return connection

    def drop(self) -> None:
        """Close the connection without waiting for the server."""
        with suppress(OSError):
            self._imap.shutdown()

    def _create_IMAP4(self) -> "_BoundedConnection":  # noqa: N802 - the library's name
        return _BoundedConnection(self._account)


class _BoundedConnection(imaplib.IMAP4):
    """A connection that is encrypted before the login, and whose answers are limited in time and size."""

    def __init__(self, account: ImapAccount) -> None:
        self._account = account
        self._context = ssl.create_default_context()  # of the system, or SSL_CERT_FILE
        self._unread = bytearray()
        self.allow(_IDLE_SECONDS, _COMMAND_BYTES)
        super().__init__(account.host, account.port)
        if not account.has_implicit_tls:
            try:
                self._start_tls()
            except BaseException:
                with suppress(OSError):
                    self.shutdown()
                raise

    def allow(self, seconds: float, size: int) -> None:
        """Set how long the next commands may take together, and how many bytes they may receive."""
        self._deadline = time.monotonic() + seconds
        self._bytes_left = size

    def open(self, host: str = "", port: int = 143, timeout: float | None = None) -> None:  # noqa: ARG002
        """Connect; called by the constructor of the library."""
        self.host, self.port = host, port
        self.sock = socket.create_connection((host, port), _IDLE_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small commands are not held back
        if self._account.has_implicit_tls:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=host)
        self._socket_read = self.sock
        self.file = self.sock.makefile("rb")  # closed by `shutdown`

    def read(self, size: int) -> bytes:
        """Return exactly this number of bytes."""
        if size > self._bytes_left + len(self._unread):
            raise self.abort(f"the server sends {size:,} bytes, more than it stated")
        while len(self._unread) < size:
            self._receive()
        return self._take(size)

    def readline(self) -> bytes:
        """Return the next line with its end."""
        if self._socket_read is not self.sock:  # TLS has started: drop what was received without it
            self._socket_read = self.sock
            self._unread.clear()
        seen = 0
        while (end := self._unread.find(b"\n", seen)) < 0:
            seen = len(self._unread)
            self._receive()
        return self._take(end + 1)

    def send(self, data: Any) -> None:
        """Send bytes."""
        self.sock.settimeout(_IDLE_SECONDS)
        super().send(data)

    def _start_tls(self) -> None:
        if "STARTTLS" not in self.capabilities or self.state != "NONAUTH":
            raise UsageError(
                "mail.imap-no-tls",
                f"{self._account.uri}: the server does not offer STARTTLS, and a connection without TLS is refused; "
                "use the port of its TLS service, usually 993",
            )
        self.starttls(self._context)
        self.untagged_responses.clear()  # sent before TLS, perhaps by somebody else

    def _receive(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the server did not finish its answer in time")
        self.sock.settimeout(min(left, _IDLE_SECONDS))
        data = self.sock.recv(1 << 18)
        self._bytes_left -= len(data)
        if not data:
            raise self.abort("the server closed the connection")
        if self._bytes_left < 0:
            raise self.abort("the answer of the server is too large")
        self._unread += data

    def _take(self, size: int) -> bytes:
        with memoryview(self._unread) as unread:
            taken = bytes(unread[:size])
        del self._unread[:size]
        return taken


def describe_error(error: BaseException) -> str:
    """Return an error of the server or the network in at most 200 printable characters."""
    text = _BYTES.sub(r"\2", str(error)) or type(error).__name__
    return "".join(each if each.isprintable() else " " for each in text)[:200].strip()


@contextmanager
def _explain_connection(account: ImapAccount) -> Iterator[None]:
    """Raise the errors of connecting with an explanation."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise UsageError(
            "mail.imap-certificate",
            f"{account.uri}: the certificate of the server is not trusted: {error.verify_message}; check the host "
            "name, or set SSL_CERT_FILE to the certificates of its authority",
        ) from None
    except (imaplib.IMAP4.error, OSError, *_MALFORMED) as error:
        if getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
            raise UsageError(
                "mail.imap-no-tls",
                f"{account.uri}: the server does not speak TLS on port {account.port}, and a connection without TLS is "
                "refused; use its TLS port (usually 993), or imap://…:143 for STARTTLS",
            ) from None
        hint = "" if account.has_implicit_tls else "; write imaps:// if this port begins with TLS"
        raise ConnectionLostError(describe_error(error) + (hint if isinstance(error, TimeoutError) else "")) from None


@contextmanager
def _explain_login(account: ImapAccount, secret: ImapSecret) -> Iterator[None]:
    """Raise a refused login with an explanation that does not contain the secret."""
    try:
        yield
    except (ConnectionLostError, TemporaryRefusalError) as error:
        raise ConnectionLostError(_hide(str(error), secret.value)) from None
    except CommandRefusedError as error:
        reason = _hide(str(error), secret.value)
        raise UsageError(
            "mail.imap-login",
            f"{account.uri}: the server refused the login with {secret.variable}: {reason}; check the user and the "
            "variable",
        ) from None


def _hide(text: str, secret: str) -> str:
    """Return a text without the secret, also if the text was cut off within it."""
    text = text.replace(secret, "***")
    start = text.find(secret[:_RECOGNIZED]) if len(secret) > _RECOGNIZED else -1
    return text if start < 0 else f"{text[:start]}***"


def _answer_once(content: bytes) -> Callable[[bytes], bytes]:
    """Return a SASL client that sends its content first, and then acknowledges errors with empty answers."""
    answers = [content]
    return lambda _: answers.pop() if answers else b""


def _parse_folder(flags: Sequence[bytes], delimiter: bytes | None, name: bytes | str | int) -> ListedFolder:
    raw = name if isinstance(name, bytes) else str(name).encode()
    try:
        title = str(decode_utf7(raw)) if raw.isascii() else raw.decode()
        title.encode()
    except ValueError:
        title = raw.decode("latin-1")
    texts = frozenset(each.decode("latin-1").lower() for each in flags)
    return ListedFolder(raw, title, delimiter.decode("latin-1") if isinstance(delimiter, bytes) else "", texts)


def _parse_facts(fields: dict[bytes, Any]) -> MessageFacts:
    try:
        received = parse_to_datetime(fields[b"INTERNALDATE"], normalise=False)
    except (KeyError, TypeError, ValueError):
        received = None
    return MessageFacts(
        size=int(fields[b"RFC822.SIZE"]),
        received=received,
        is_deleted=any(bytes(each).lower() == b"\\deleted" for each in fields.get(b"FLAGS") or ()),
    )


def _check(status: str, data: list[Any]) -> list[Any]:
    """Return the answer to a command, or raise CommandRefusedError if it was refused."""
    if status != "OK":
        raise _refusal(imaplib.IMAP4.error(data[-1]))
    return data


def _refusal(error: imaplib.IMAP4.error) -> CommandRefusedError:
    """Return the error for a command that was refused."""
    reason = describe_error(error)
    is_temporary = any(each in reason.upper() for each in _TEMPORARY)
    return (TemporaryRefusalError if is_temporary else CommandRefusedError)(reason)
