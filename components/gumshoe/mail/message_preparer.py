"""Parse and analyze messages for an index, in this process or in several.

This is the part of a build that needs no order, and most of its time.
"""

import itertools
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.errors import UnavailableError
from gumshoe.mail.attachments import AttachmentLimits, AttachmentReader
from gumshoe.mail.items import RawItem, parse_item
from gumshoe.mail.message import ParsedMessage, clean, list_texts
from gumshoe.mail.postings import MAX_POSITION, NO_POSITION
from gumshoe.mail.terms import subject_term
from gumshoe.mail.words import MailAnalyzer

_MIN_BATCHES = 12  # with fewer, starting processes takes longer than it saves
_AHEAD = 2  # batches waiting for each process
_MAX_SECONDS = 600  # for one batch
_END_SECONDS = 5  # for processes to end by themselves


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Limits on messages and their attachments. A message above a limit is skipped."""

    max_body: int | None
    max_recipients: int | None
    skipped_states: frozenset[str]
    attachments: AttachmentLimits


@dataclass(slots=True)
class TextTerms:
    """The words of a message, of subject, body and attachments, and the term of its subject's thread."""

    places: NDArray[np.uint32]
    """[occurrences]: place of each term in the `terms` of its batch."""
    positions: NDArray[np.uint16]
    """[occurrences]"""
    subject: int
    """Number of words of the subject, which come first."""
    words: int
    """Number of words."""


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    """A parsed message, with its words unless it is skipped."""

    message: ParsedMessage
    digest: bytes
    """Of subject, body, sender and attachments, 16 bytes."""
    terms: TextTerms | None
    skipped: str = ""
    """Reason for skipping it."""


PreparedItem = PreparedMessage | UnreadableItem


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The items of a batch, in order."""

    items: list[PreparedItem]
    terms: NDArray[np.uint64]
    """[terms]: the different terms of all items."""


class Preparer:
    """Parse and analyze messages. Create one per process."""

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._analyzer = MailAnalyzer()
        self._reader = AttachmentReader(limits.attachments)

    def close(self) -> None:
        """End the process that reads attachments, if there is one."""
        self._reader.__exit__(None, None, None)

    def prepare(self, batch: Iterable[RawItem]) -> PreparedBatch:
        """Parse items of a source and find their words."""
        texts: list[AnalyzedText] = []
        items = [self._prepare_item(item, texts) for item in batch]
        return PreparedBatch(items, collect_terms(texts))

    def _prepare_item(self, item: RawItem, texts: "list[AnalyzedText]") -> PreparedItem:
        message = parse_item(item)
        if isinstance(message, UnreadableItem):
            return UnreadableItem(clean(message.where), message.reason, clean(message.detail))
        digest = _digest(message)
        files, message.files = message.files, []
        reason = find_skip_reason(message, self._limits)
        if reason:
            return PreparedMessage(message, digest, None, reason)
        if files:
            message.attachments = self._reader.read_all(files)
        texts.append(analyze_text(self._analyzer, message.subject, list_texts(message.body, message.attachments)))
        return PreparedMessage(message, digest, texts[-1].result)


def _digest(message: ParsedMessage) -> bytes:
    """Return the digest by which messages are equal: of subject, body, sender and attached files."""
    digest = blake2b(f"{message.subject}\0{message.body}\0{message.sender}".encode(), digest_size=16)
    for file in message.files:
        digest.update(b"\0" + blake2b(file.data, digest_size=16).digest())
    return digest.digest()


def find_skip_reason(message: ParsedMessage, limits: MessageLimits) -> str:
    """Return why a message is skipped, or an empty text."""
    if message.state in limits.skipped_states:
        return message.state
    if limits.max_body is not None and len(message.body) > limits.max_body:
        return "long body"
    if limits.max_recipients is not None and len(message.recipients) > limits.max_recipients:
        return "many recipients"
    return ""


class AnalyzedText(NamedTuple):
    """A text whose terms are not collected yet."""

    terms: NDArray[np.uint64]
    """[occurrences]"""
    result: TextTerms


def analyze_text(analyzer: MailAnalyzer, subject: str, texts: Iterable[str]) -> AnalyzedText:
    """Find the words of a subject and of other texts, with a gap between each two, so that no phrase spans them."""
    found = [analyzer.analyze(subject), *map(analyzer.analyze, texts)]
    positions, start = [], 0
    for each in found:
        positions.append(np.minimum(each.positions + np.uint32(start), MAX_POSITION).astype(np.uint16))
        start += each.tokens + 1
    thread = subject_term(subject)
    no_words = np.array([] if thread is None else [thread], np.uint64)
    positions.append(np.full(len(no_words), NO_POSITION, np.uint16))
    result = TextTerms(
        np.zeros(0, np.uint32),
        np.concatenate(positions),
        subject=min(found[0].tokens, MAX_POSITION),
        words=sum(each.tokens for each in found),
    )
    return AnalyzedText(np.concatenate([*(each.terms for each in found), no_words]), result)


def collect_terms(texts: list[AnalyzedText]) -> NDArray[np.uint64]:
    """Return the different terms of some texts, and set the places of each text's terms in them."""
    if not texts:
        return np.zeros(0, np.uint64)
    all_terms = np.concatenate([each.terms for each in texts])
    order = np.argsort(all_terms)  # numpy.unique sorts with a slower algorithm
    in_order = all_terms[order]
    is_new = np.ones(len(in_order), np.bool_)
    np.not_equal(in_order[1:], in_order[:-1], out=is_new[1:])
    places = np.empty(len(in_order), np.uint32)
    places[order] = np.cumsum(is_new) - 1
    start = 0
    for each in texts:
        each.result.places = places[start : start + len(each.terms)]
        start += len(each.terms)
    return in_order[is_new]


class BatchPreparer:
    """Prepare batches of items in order, in this process or in one for each core if there is enough work.

    Example: `with BatchPreparer(limits) as preparer: ...`
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._own = Preparer(limits)
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._own.close()
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(_END_SECONDS)
            worker.process.kill()
            worker.process.join()

    def prepare(self, batches: Iterator[list[RawItem]]) -> Iterator[PreparedBatch]:
        """Yield the prepared items of each batch, in the order of the batches.

        Raises:
            UnavailableError: if a process ended, or did nothing for ten minutes.
        """
        first = list(itertools.islice(batches, _MIN_BATCHES))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if len(first) < _MIN_BATCHES or cores == 1:
            yield from map(self._own.prepare, itertools.chain(first, batches))
            return
        for _ in range(cores):
            self._workers.append(_Worker(self._limits))
        yield from _share_out([each.connection for each in self._workers], itertools.chain(first, batches))


def _share_out(connections: list["Connection[Any, Any]"], batches: Iterator[list[RawItem]]) -> Iterator[PreparedBatch]:
    """Give each process one batch at a time, and yield the results in the order of the batches."""
    idle, busy = list(connections), dict[Any, int]()
    results: dict[int, PreparedBatch] = {}
    sent = yielded = 0
    batch = next(batches, None)
    while batch is not None or busy or results:
        while batch is not None and idle and sent - yielded < _AHEAD * len(connections):
            connection = idle.pop()
            connection.send(batch)
            busy[connection] = sent
            sent += 1
            batch = next(batches, None)
        if yielded in results:
            yield results.pop(yielded)
            yielded += 1
            continue
        ready: list[Any] = list(wait(list(busy), _MAX_SECONDS))
        if not ready:
            raise _worker_error(f"did nothing for {_MAX_SECONDS} seconds")
        for each in ready:
            try:
                results[busy.pop(each)] = each.recv()
            except (EOFError, OSError):
                raise _worker_error("ended") from None
            idle.append(each)


def _worker_error(what: str) -> UnavailableError:
    return UnavailableError(
        "mail.build-process-ended",
        f"a process that reads messages {what}; start the command again; it resumes after its last complete segment",
    )


class _Worker:
    """A process that prepares batches. It ends when its connection is closed, and so with its parent."""

    def __init__(self, limits: MessageLimits) -> None:
        context = get_context("forkserver")  # a fork would copy threads and locks of this process
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_prepare_batches, args=(other, limits))
        self.process.start()
        other.close()


def _prepare_batches(connection: "Connection[Any, Any]", limits: MessageLimits) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    preparer = Preparer(limits)
    try:
        while True:
            connection.send(preparer.prepare(connection.recv()))
    except (EOFError, OSError):  # the parent closed the connection, or has ended
        return
    finally:
        preparer.close()
