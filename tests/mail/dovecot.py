"""Run Dovecot, the IMAP server of the system, without root rights."""

import grp
import os
import pwd
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import find_free_port, kill_tree
from tests.mail.imap_server import PASSWORD, USER
from tests.waiting import wait_until


def find_dovecot() -> str | None:
    """Return the program, if it is installed."""
    return shutil.which("dovecot", path=f"{os.environ['PATH']}:/usr/sbin")


class Dovecot:
    """A running Dovecot. See `imap_server.ImapServer`."""

    def __init__(self, directory: Path, certificate: Path) -> None:
        self._directory = directory
        self._certificate = certificate
        self._port, self._tls_port = find_free_port(), find_free_port()

    @contextmanager
    def run(self) -> Iterator["Dovecot"]:
        """Serve while the block runs."""
        as_root = os.geteuid() == 0  # whose mail Dovecot never serves
        owner = "nobody" if as_root else pwd.getpwuid(os.geteuid()).pw_name
        group = "nogroup" if as_root else grp.getgrgid(os.getegid()).gr_name
        (self._directory / "dovecot.conf").write_text(self._configuration(owner, group))
        if as_root:
            for each in (self._directory, *self._directory.iterdir()):
                shutil.chown(each, "nobody", "nogroup")
        command = [find_dovecot() or "dovecot", "-F", "-c", str(self._directory / "dovecot.conf")]
        process = (
            subprocess.Popen(command, user="nobody", group="nogroup", extra_groups=[])
            if as_root
            else subprocess.Popen(command)
        )
        try:
            wait_until(self._accepts, process, lambda: (self._directory / "log").read_text())
            yield self
        finally:
            kill_tree(process)

    def uri(self, folders: str = "", scheme: str = "imaps") -> str:
        port = self._tls_port if scheme == "imaps" else self._port
        return f"{scheme}://ann%40example.com@localhost:{port}/{folders}"

    def append(self, folder: str, raw: bytes, *flags: str) -> int:
        answer = self._do("append", folder, raw, flags)
        return int(re.findall(rb"APPENDUID \d+ (\d+)", answer)[0])

    def create(self, folder: str) -> None:
        self._do("create_folder", folder)

    def delete(self, folder: str) -> None:
        self._do("delete_folder", folder)

    def mark(self, folder: str, uid: int) -> None:
        self._do("select_folder", folder, then=("add_flags", [uid], "\\Deleted"))

    def expunge(self, folder: str) -> None:
        self._do("select_folder", folder, then=("expunge",))

    def _do(self, method: str, *arguments: object, then: tuple[object, ...] = ()) -> bytes:
        from imapclient import IMAPClient

        context = ssl.create_default_context(cafile=str(self._certificate))
        with IMAPClient("localhost", self._tls_port, ssl_context=context) as client:
            client.login(USER, PASSWORD)
            client.folder_encode = False
            answer = getattr(client, method)(*arguments)
            if then:
                getattr(client, str(then[0]))(*then[1:])
        return answer if isinstance(answer, bytes) else b""

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._tls_port)).close()
        except OSError:
            return False
        return True

    def _configuration(self, owner: str, group: str) -> str:
        folders = "".join(
            f"  mailbox {name} {{\n    auto = create\n    special_use = \\{name}\n  }}\n"
            for name in ("Trash", "Junk", "Sent")
        )
        unconfined = "".join(f"service {name} {{\n  chroot =\n}}\n" for name in ("anvil", "stats"))
        return f"""
base_dir = {self._directory}/run
state_dir = {self._directory}/state
log_path = {self._directory}/log
protocols = imap
listen = 127.0.0.1
default_internal_user = {owner}
default_internal_group = {group}
default_login_user = {owner}
ssl = required
ssl_cert = <{self._certificate}
ssl_key = <{self._certificate}
auth_mechanisms = plain
auth_failure_delay = 0
mail_location = sdbox:{self._directory}/mail
mail_uid = {owner}
mail_gid = {group}
first_valid_uid = 1
passdb {{
  driver = static
  args = "password={PASSWORD}"
}}
userdb {{
  driver = static
  args = home={self._directory}/home
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {self._port}
  }}
  inet_listener imaps {{
    port = {self._tls_port}
  }}
}}
{unconfined}namespace inbox {{
  inbox = yes
  separator = /
{folders}}}
"""


@contextmanager
def run_dovecot(certificate: Path) -> Iterator[Dovecot]:
    """Run Dovecot in a directory of its own while the block runs."""
    with tempfile.TemporaryDirectory(prefix="dovecot-", dir="/tmp") as directory:  # short, for its sockets
        copy = Path(directory) / "certificate.pem"
        copy.write_bytes(certificate.read_bytes())
        with Dovecot(Path(directory), copy).run() as server:
            yield server
