"""A small IMAP server for tests, over real sockets with TLS. It answers as Dovecot does, and can misbehave.

`dovecot` runs the real one with the same methods, so that tests can compare them.
"""

import base64
import re
import shlex
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

USER, PASSWORD = "ann@example.com", "correct-horse"
TOKEN = "ya29.token-of-ann"
_DATE = "14-May-2001 12:00:00 +0000"


class ImapServer(Protocol):
    """A running server with the account of USER, whose folders are INBOX, Sent, Trash and Junk at first."""

    def uri(self, folders: str = "", scheme: str = "imaps") -> str:
        """Return the URI of folders."""
        ...

    def append(self, folder: str, raw: bytes, *flags: str) -> int:
        """Add a message and return its UID."""
        ...

    def create(self, folder: str) -> None:
        """Add a folder."""
        ...

    def delete(self, folder: str) -> None:
        """Delete a folder with its messages."""
        ...

    def mark(self, folder: str, uid: int) -> None:
        """Set the flag `\\Deleted` of a message."""
        ...

    def expunge(self, folder: str) -> None:
        """Remove the messages that are marked."""
        ...


@dataclass
class Message:
    """A message of the fake server."""

    uid: int
    raw: bytes
    flags: list[str]
    stated_size: int | None = None
    """Size that the server states, if it is wrong."""


@dataclass
class Folder:
    """A folder of the fake server."""

    uidvalidity: int
    flags: tuple[str, ...] = ()
    messages: list[Message] = field(default_factory=list)
    next_uid: int = 1


class Visit:
    """One connection to the fake server."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self.folder: Folder | None = None

    def send(self, *lines: str | bytes) -> None:
        """Send lines, and bytes as they are."""
        for line in lines:
            self._connection.sendall(line if isinstance(line, bytes) else f"{line}\r\n".encode())

    def receive(self) -> str:
        """Return the next line, or an empty string if the client has gone."""
        return self._file.readline().decode().rstrip("\r\n")

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Continue with TLS."""
        self._file.close()
        self._connection = context.wrap_socket(self._connection, server_side=True)
        self._file = self._connection.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._connection.close()


Misbehavior = Callable[[Visit, str, str], bool]
"""Gets the visit, the tag and the command before the server does. Returns True if it has answered in its own way."""


class FakeImapServer:
    """A server in this process. It answers as Dovecot does, and can be told to misbehave."""

    def __init__(self, certificate: Path, starts_with_tls: bool = True) -> None:
        self.folders = {"INBOX": Folder(1), "Sent": Folder(2, ("\\Sent",))}
        self.folders |= {"Trash": Folder(3, ("\\Trash",)), "Junk": Folder(4, ("\\Junk",))}
        self.capabilities = ["IMAP4rev1", "SASL-IR", "AUTH=PLAIN", "AUTH=XOAUTH2", "SPECIAL-USE", "UIDPLUS"]
        self.lists_special_uses = True
        self.misbehave: Misbehavior = lambda *_: False
        self.greeting = "* OK Fake ready."
        self.commands: list[str] = []
        """All commands, without tags and secrets."""
        self.visits = 0
        self._starts_with_tls = starts_with_tls
        if not starts_with_tls:
            self.capabilities.append("STARTTLS")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[Visit] = set()
        self._threads: list[threading.Thread] = []
        self._next_uidvalidity = 5

    # What tests change ----------------------------------------------------------------------------------------------

    def uri(self, folders: str = "", scheme: str = "") -> str:
        port = self._listener.getsockname()[1]
        scheme = scheme or ("imaps" if self._starts_with_tls else "imap")
        return f"{scheme}://ann%40example.com@localhost:{port}/{folders}"

    def append(self, folder: str, raw: bytes, *flags: str) -> int:
        found = self.folders[folder]
        found.messages.append(Message(found.next_uid, raw, list(flags)))
        found.next_uid += 1
        return found.next_uid - 1

    def create(self, folder: str) -> None:
        self.folders[folder] = Folder(self._next_uidvalidity)
        self._next_uidvalidity += 1

    def delete(self, folder: str) -> None:
        del self.folders[folder]

    def mark(self, folder: str, uid: int) -> None:
        next(each for each in self.folders[folder].messages if each.uid == uid).flags.append("\\Deleted")

    def expunge(self, folder: str) -> None:
        found = self.folders[folder]
        found.messages = [each for each in found.messages if "\\Deleted" not in each.flags]

    # The protocol ---------------------------------------------------------------------------------------------------

    @contextmanager
    def run(self) -> Iterator["FakeImapServer"]:
        """Serve while the block runs."""
        accepting = threading.Thread(target=self._accept)
        accepting.start()
        try:
            yield self
        finally:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            self._listener.close()
            for visit in list(self._open):
                visit.close()
            for thread in self._threads:
                thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.visits += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        visit = Visit(connection)
        self._open.add(visit)
        with suppress(OSError, ValueError):  # the client has gone, or refuses the certificate
            if self._starts_with_tls:
                visit.start_tls(self.context)
            if not self.misbehave(visit, "", "connect"):
                visit.send(self.greeting)
            while line := visit.receive():
                tag, _, command = line.partition(" ")
                self.commands.append(re.sub('(LOGIN "[^"]*") .*', r"\1 ***", command))
                if not self.misbehave(visit, tag, command):
                    self._answer(visit, tag, command)
        self._open.discard(visit)
        visit.close()

    def _answer(self, visit: Visit, tag: str, command: str) -> None:
        match shlex.split(command):
            case ["CAPABILITY"]:
                visit.send(f"* CAPABILITY {' '.join(self.capabilities)}", f"{tag} OK Pre-login capabilities listed.")
            case ["STARTTLS"] if "STARTTLS" in self.capabilities:
                visit.send(f"{tag} OK Begin TLS negotiation now.")
                visit.start_tls(self.context)
            case ["LOGIN", user, password]:
                self._log_in(visit, tag, (user, password) == (USER, PASSWORD))
            case ["AUTHENTICATE", mechanism]:
                visit.send("+ ")
                self._authenticate(visit, tag, mechanism, base64.b64decode(visit.receive()).decode())
            case ["LIST", "", "*"]:
                self._list(visit, tag, shows_uses=self.lists_special_uses)
            case ["LIST", "(SPECIAL-USE)", "", "*"]:
                self._list(visit, tag, shows_uses=True, only_special=True)
            case ["EXAMINE", name]:
                self._examine(visit, tag, name)
            case ["UID", "SEARCH", *criteria]:
                found = [each.uid for each in _search(visit.folder, criteria)]
                visit.send(" ".join(["* SEARCH", *map(str, found)]), f"{tag} OK Search completed.")
            case ["UID", "FETCH", uids, *_]:
                self._fetch(visit, tag, uids, "BODY.PEEK[]" in command)
            case ["LOGOUT"]:
                visit.send("* BYE Logging out", f"{tag} OK Logout completed.")
            case _:
                visit.send(f"{tag} BAD Error in IMAP command {command.partition(' ')[0]}: Unknown command.")

    def _authenticate(self, visit: Visit, tag: str, mechanism: str, given: str) -> None:
        expected = f"user={USER}\1auth=Bearer {TOKEN}\1\1" if mechanism == "XOAUTH2" else f"\0{USER}\0{PASSWORD}"
        if mechanism == "XOAUTH2" and given != expected:  # an error, which the client acknowledges
            visit.send("+ " + base64.b64encode(b'{"status":"400"}').decode())
            visit.receive()
        self._log_in(visit, tag, given == expected)

    def _log_in(self, visit: Visit, tag: str, is_right: bool) -> None:
        visit.send(f"{tag} OK Logged in" if is_right else f"{tag} NO [AUTHENTICATIONFAILED] Authentication failed.")

    def _list(self, visit: Visit, tag: str, shows_uses: bool, only_special: bool = False) -> None:
        for name, folder in self.folders.items():
            if folder.flags or not only_special:
                flags = " ".join(each for each in folder.flags if shows_uses or each == "\\Noselect")
                visit.send(f'* LIST ({flags}) "/" {_quote(name)}')
        visit.send(f"{tag} OK List completed.")

    def _examine(self, visit: Visit, tag: str, name: str) -> None:
        folder = self.folders.get(name)
        if folder is None or "\\Noselect" in folder.flags:
            visit.send(f"{tag} NO Mailbox doesn't exist: {name}")
            return
        visit.folder = folder
        visit.send(
            "* FLAGS (\\Answered \\Flagged \\Deleted \\Seen \\Draft)",
            "* OK [PERMANENTFLAGS ()] Read-only mailbox.",
            f"* {len(folder.messages)} EXISTS",
            "* 0 RECENT",
            f"* OK [UIDVALIDITY {folder.uidvalidity}] UIDs valid",
            f"* OK [UIDNEXT {folder.next_uid}] Predicted next UID",
            f"{tag} OK [READ-ONLY] Examine completed.",
        )

    def _fetch(self, visit: Visit, tag: str, uids: str, with_content: bool) -> None:
        wanted = {int(each) for each in uids.split(",")}
        for number, each in enumerate(visit.folder.messages if visit.folder else [], 1):
            if each.uid not in wanted:
                continue
            if with_content:
                visit.send(f"* {number} FETCH (UID {each.uid} BODY[] {{{len(each.raw)}}}", each.raw, ")")
            else:
                size = len(each.raw) if each.stated_size is None else each.stated_size
                facts = f'FLAGS ({" ".join(each.flags)}) RFC822.SIZE {size} INTERNALDATE "{_DATE}"'
                visit.send(f"* {number} FETCH (UID {each.uid} {facts})")
        visit.send(f"{tag} OK Fetch completed.")


def _quote(name: str) -> str:
    return name if re.fullmatch(r"[\w./&+-]+", name) else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _search(folder: Folder | None, criteria: list[str]) -> list[Message]:
    messages = folder.messages if folder else []
    match criteria:
        case ["ALL"]:
            return messages
        case ["DELETED"]:
            return [each for each in messages if "\\Deleted" in each.flags]
        case ["UID", uids] if uids.endswith(":*"):  # which includes the last message always
            return [each for each in messages if each.uid >= int(uids[:-2]) or each is messages[-1]]
        case ["UID", uids]:
            return [each for each in messages if str(each.uid) in uids.split(",")]
    raise AssertionError(criteria)
