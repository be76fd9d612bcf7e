"""Read mailboxes of Outlook (`.pst`, `.ost`) through the program readpst."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gumshoe.artifacts.lines import file_size, read_blocks
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.storage import open_uri, split_uri
from gumshoe.errors import UsageError
from gumshoe.mail.items import MailSource, RawItem
from gumshoe.mail.mbox import split_mbox
from gumshoe.mail.states import find_folder_state, is_sent_folder

_PST_MAGIC = b"!BDN"
_MIN_SECONDS = 300  # time limit of readpst, beside the time for the bytes of the file
_BYTES_PER_SECOND = 1 << 20


@dataclass(frozen=True, slots=True)
class PstSource(MailSource):
    """A mailbox of Outlook, read by the program readpst."""

    place: str

    @classmethod
    def open(cls, uri: str, place: str) -> "PstSource":
        """Open a `.pst` or `.ost` file.

        Raises:
            UsageError: if it is another file, or readpst is not installed.
        """
        total = file_size(place)
        with open_uri(place) as file:
            if file.read(4) != _PST_MAGIC:
                raise UsageError("mail.unreadable-pst", f"{uri} is not a mailbox of Outlook; check the file")
        if not shutil.which("readpst"):
            raise UsageError(
                "mail.no-readpst", f"{uri}: reading it requires the program readpst: sudo apt-get install pst-utils"
            )
        return cls(uri, total, place)

    def read_raw(self, advance: Callable[[int], object]) -> Iterator[RawItem]:
        with TemporaryDirectory(prefix="gumshoe-pst-") as directory:
            mailbox, target = Path(directory, "mailbox.pst"), Path(directory, "mail")
            target.mkdir()
            if self.place.startswith("s3://"):
                with open_uri(self.place) as opened, mailbox.open("wb") as copy:
                    shutil.copyfileobj(opened, copy, 1 << 20)
            else:
                mailbox.symlink_to(Path(split_uri(self.place)[2]).absolute())
            problem = _run_readpst(mailbox, target, self.total or 0)
            for box in sorted(path for path in target.rglob("mbox") if path.is_file() and not path.is_symlink()):
                folder = box.parent.relative_to(target).as_posix()
                with box.open("rb") as file:
                    blocks, where = read_blocks(file, box.name), f"{self.place}/{folder}"
                    yield from split_mbox(blocks, where, find_folder_state(folder), is_sent=is_sent_folder(folder))
            advance(self.total or 0)
            if problem:
                yield UnreadableItem(self.place, "damaged file", problem)


def _run_readpst(mailbox: Path, target: Path, size: int) -> str:
    """Write the mail of a mailbox to one mbox file per folder. Return what went wrong, or an empty string."""
    command = ["readpst", "-j", "0", "-r", "-q", "-8", "-b", "-t", "e", "-o", str(target), str(mailbox)]
    timeout = _MIN_SECONDS + size / _BYTES_PER_SECOND
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"readpst did not end within {timeout:.0f} seconds"
    except OSError as error:
        return f"cannot run readpst: {error.strerror}"
    output = done.stderr.decode("utf-8", "replace").strip() or done.stdout.decode("utf-8", "replace").strip()
    return f"readpst failed ({done.returncode}): {output[-200:]}" if done.returncode else ""
