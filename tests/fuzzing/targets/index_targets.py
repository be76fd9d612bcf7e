"""Targets: indexes with damaged files. They give an error that says so, or what they hold, and nothing else."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hypothesis import strategies as st

from gumshoe.documents.index import DocumentIndex
from gumshoe.errors import GumshoeError
from gumshoe.mail.build import extend_mail_index
from gumshoe.mail.index import MailIndex
from tests.documents.collection import make_index as make_document_index
from tests.documents.collection import plain_records
from tests.fuzzing.fuzz_target import Check, FuzzTarget
from tests.mail.mailbox import KEEP_ALL, make_index, record, write_jsonl

ANN = "ann@example.com"


@st.composite
def damages(draw: st.DrawFn) -> bytes:
    """Return a description of damage as JSON: the number of a file, its new length, and places with new bytes."""
    cut = draw(st.none() | st.none() | st.integers(0, 2000))
    changes = draw(st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=9)), max_size=8))
    text = draw(st.none() | st.none() | st.text('{}[]":,0123456789ntrue', max_size=30))
    return json.dumps([draw(st.integers(0, 9)), cut, [[at, new.hex()] for at, new in changes], text]).encode()


def _damage(directory: Path, data: bytes) -> bool:
    """Change a file of an index. Return False if the description is invalid."""
    try:
        number, cut, changes, text = json.loads(data)
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        path = files[int(number) % len(files)]
        content = bytearray(path.read_bytes())
        for at, new in changes:
            start, inserted = int(at) % max(len(content), 1), bytes.fromhex(new)
            content[start : start + len(inserted)] = inserted
        if cut is not None:
            del content[-min(int(cut), len(content)) :]
        if text is not None:
            content = bytearray(text.encode())
    except (ValueError, TypeError, RecursionError, OverflowError):
        return False
    path.chmod(0o600)
    path.write_bytes(content)
    return True


def _opener(make: Callable[[Path], Path], read: Callable[[Path], None]) -> Callable[[], AbstractContextManager[Check]]:
    """Return how to open a check that damages a copy of an index and reads it."""

    @contextmanager
    def prepare() -> Iterator[Check]:
        with tempfile.TemporaryDirectory() as name:
            whole, copy = make(Path(name) / "whole"), Path(name) / "copy"
            read(whole)

            def check(data: bytes) -> None:
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(whole, copy)
                if not _damage(copy, data):
                    return
                try:
                    read(copy)
                except GumshoeError as error:
                    if str(copy) not in error.message and error.code != "mail.message-not-found":
                        raise AssertionError(f"the message does not name the index: {error.message}") from error

            yield check

    return prepare


def _make_mail(directory: Path) -> Path:
    mail = [
        record(number, body=f"gas price {number} {'power ' * number}", references=f"<{number - 1}@example.com>")
        for number in range(12)
    ]
    return make_index(directory, mail, KEEP_ALL).path.parent


def _read_mail(directory: Path) -> None:
    """Do everything that an agent does, and what an administrator looks at. One error does not hide the next."""
    index = MailIndex(directory)
    steps: tuple[Callable[[], object], ...] = (
        lambda: index.search(ANN, ["gas price", "power"]),
        lambda: index.search(ANN, ["gas"], sender="ann", sent_after="2001-01-01", one_per_thread=True),
        lambda: index.search_partially(ANN, ["gas", "nothing"]),
        lambda: index.search_by_meaning(ANN, "gas price power"),
        lambda: [index.read(ANN, each) for each, _ in index.list_messages(ANN)],
        lambda: index.read_thread(ANN, "<5@example.com>"),
        index.stats,
        index.list_unreadable,
    )
    _run_all(steps)


def _run_all(steps: tuple[Callable[[], object], ...]) -> None:
    failed: GumshoeError | None = None
    for step in steps:
        try:
            step()
        except GumshoeError as error:
            failed = failed or error
    if failed:
        raise failed


def _extend_mail(directory: Path) -> None:
    """Add a message to an index. It is a copy, except before any damage."""
    source = write_jsonl(directory.parent / "more.jsonl", [record(50, body="more gas")])
    if directory.name == "copy":
        extend_mail_index([source], directory)
        assert MailIndex(directory).search(ANN, ["more gas"])


def _make_documents(directory: Path) -> Path:
    make_document_index(directory, plain_records(12))
    return directory / "index"


def _read_documents(directory: Path) -> None:
    index = DocumentIndex(directory)
    _run_all((lambda: index.search("thing part"), lambda: index.read("3"), lambda: index.head("3")))


INDEX_TARGETS = (
    FuzzTarget("mail-index", damages, _opener(_make_mail, _read_mail), 60),
    FuzzTarget("mail-index-extended", damages, _opener(_make_mail, _extend_mail), 12),
    FuzzTarget("document-index", damages, _opener(_make_documents, _read_documents), 20),
)
