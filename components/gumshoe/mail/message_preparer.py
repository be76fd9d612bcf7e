"""Parse and analyze messages for an index, in this process or in several.

This is the part of a build that needs no order, and most of its time.
"""

import gc
import itertools
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, Self

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.errors import UnavailableError
from gumshoe.extraction.processes import end_with_parent
from gumshoe.mail.attachments import AttachmentLimits, AttachmentReader
from gumshoe.mail.inboxes import list_people
from gumshoe.mail.items import RawItem, parse_item
from gumshoe.mail.message import Attachment, ParsedMessage, clean, list_texts
from gumshoe.mail.prepared_messages import PreparedBatch, PreparedItem, PreparedMessage
from gumshoe.mail.term_collector import TermCollector
from gumshoe.mail.words import MailAnalyzer

_MIN_BATCHES = 12  # with fewer, starting processes takes longer than it saves
_AHEAD = 2  # batches waiting for each process
_MAX_SECONDS = 600  # without a sign of life of any process; one message takes less
_HEARTBEAT_SECONDS = 10.0  # at least, between two signs of life of a process
_GARBAGE_THRESHOLDS = (5_000, 20, 100)  # see gc.set_threshold
_END_SECONDS = 5  # for processes to end by themselves


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Limits on messages and their attachments. A message above a limit is skipped."""

    max_body: int | None
    max_recipients: int | None
    skipped_states: frozenset[str]
    attachments: AttachmentLimits
    only_compares: bool = False
    """Leave out terms and the text of attachments, which are not needed to find a message in an index."""


class _Preparer:
    """Parse and analyze messages. Create one per process."""

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._collector = TermCollector(MailAnalyzer())
        self._reader = AttachmentReader(limits.attachments)

    def close(self) -> None:
        """End the process that reads attachments, if there is one."""
        self._reader.__exit__(None, None, None)

    def prepare(self, batch: Iterable[RawItem], finish_item: Callable[[], None] = lambda: None) -> PreparedBatch:
        """Parse items of a source and find their words. `finish_item` is called after each."""
        items: list[PreparedItem] = []
        for item in batch:
            items.append(self._prepare_item(item))
            finish_item()
        return PreparedBatch(items, self._collector.finish())

    def _prepare_item(self, item: RawItem) -> PreparedItem:
        message = parse_item(item)
        if isinstance(message, UnreadableItem):
            return UnreadableItem(clean(message.where), message.reason, clean(message.detail))
        digest = _digest(message)
        skipped = _find_skip_reason(message, self._limits)
        terms = envelope = None
        attachments: list[Attachment] = []
        recipients = [[each.role, each.address, each.name] for each in message.recipients]
        if not skipped and not self._limits.only_compares:
            attachments = self._reader.read_all(message.files) if message.files else message.attachments
            terms = self._collector.add_text(message.subject, list_texts(message.body, attachments))
            envelope = self._collector.add_envelope(
                message.message_id, message.references, message.sender, message.sender_name, recipients
            )
        return PreparedMessage(
            message.message_id,
            message.has_generated_id,
            message.sent,
            message.utc_offset,
            message.sender,
            message.sender_name,
            message.sender_is_doubtful,
            recipients,
            message.is_sent,
            message.statements,
            "",
            list_people(message),
            message.references,
            message.subject,
            "" if skipped else message.body,
            [[each.name, each.text, each.problem] for each in attachments],
            digest,
            terms,
            envelope,
            skipped,
        )


def _digest(message: ParsedMessage) -> bytes:
    """Return the digest by which messages are equal: of subject, body, sender and attached files."""
    digest = blake2b(f"{message.subject}\0{message.body}\0{message.sender}".encode(), digest_size=16)
    for file in message.files:
        digest.update(b"\0" + blake2b(file.data, digest_size=16).digest())
    return digest.digest()


def _find_skip_reason(message: ParsedMessage, limits: MessageLimits) -> str:
    """Return why a message is skipped, or an empty text."""
    if message.state in limits.skipped_states:
        return message.state
    if limits.max_body is not None and len(message.body) > limits.max_body:
        return "long body"
    if limits.max_recipients is not None and len(message.recipients) > limits.max_recipients:
        return "many recipients"
    return ""


class BatchPreparer:
    """Prepare batches of items in order, in this process or in one for each core if there is enough work.

    Example: `with BatchPreparer(limits) as preparer: ...`
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._own = _Preparer(limits)
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
            UnavailableError: if a process ended, or none finished a message for ten minutes.
        """
        first = deque(itertools.islice(batches, _MIN_BATCHES))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        is_small = len(first) < _MIN_BATCHES or cores == 1
        taken = (first.popleft() for _ in range(len(first)))  # not held until the build ends
        every = itertools.chain(taken, batches)
        if is_small:
            yield from map(self._own.prepare, every)
            return
        for _ in range(cores):
            self._workers.append(_Worker(self._limits))
        yield from _share_out([each.connection for each in self._workers], every)


def _share_out(connections: list["Connection[Any, Any]"], batches: Iterator[list[RawItem]]) -> Iterator[PreparedBatch]:
    """Give each process one batch at a time, and yield the results in the order of the batches.

    Raises:
        OSError: the operating system refused something to a process, e.g. because a disk is full.
        UnavailableError: a process ended, or did nothing for too long.
    """
    idle, busy = list(connections), dict[Any, int]()
    results: dict[int, PreparedBatch] = {}
    sent = yielded = 0
    batch = next(batches, None)
    while batch is not None or busy or results:
        while batch is not None and idle and sent - yielded < _AHEAD * len(connections):
            connection = idle.pop()
            with _explain_lost_process(is_first=not yielded):
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
            with _explain_lost_process(is_first=not yielded):
                result = each.recv()
            if isinstance(result, OSError):
                raise result
            if result is not None:  # otherwise it is a sign of life
                results[busy.pop(each)] = result
                idle.append(each)


@contextmanager
def _explain_lost_process(*, is_first: bool) -> Iterator[None]:
    """Explain that a process has ended, or that it never started, if this is for the first batch."""
    try:
        yield
    except (EOFError, OSError):
        if not is_first:
            raise _worker_error("ended") from None
        raise UnavailableError(
            "mail.build-processes-not-started",
            "the processes that read messages ended before their first result; see what they printed, and if this is a "
            'script, put what it does under `if __name__ == "__main__":`',
        ) from None


def _worker_error(what: str) -> UnavailableError:
    return UnavailableError(
        "mail.build-process-ended",
        f"a process that reads messages {what}; start the command again; it resumes after its last complete segment",
    )


class _Worker:
    """A process that prepares batches. It ends when its connection is closed, and with its parent."""

    def __init__(self, limits: MessageLimits) -> None:
        context = get_context("forkserver")  # a fork would copy threads and locks of this process
        context.set_forkserver_preload([__name__])  # imported once, in memory that processes share
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_prepare_batches, args=(other, limits))
        self.process.start()
        other.close()


class _Heartbeat:
    """Shows the parent that a process is at work on a batch, by sending None now and then.

    A batch of hundreds of messages whose attachments reach their limits takes hours.
    """

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._last = monotonic()

    def beat(self) -> None:
        """Send a sign of life if the last one was some time ago. It is called after each message."""
        now = monotonic()
        if now >= self._last + _HEARTBEAT_SECONDS:
            self._connection.send(None)
            self._last = now


def _prepare_batches(connection: "Connection[Any, Any]", limits: MessageLimits) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    end_with_parent()
    preparer = _Preparer(limits)
    try:
        with _collect_garbage_rarely():
            while True:
                batch, heartbeat = connection.recv(), _Heartbeat(connection)
                result: PreparedBatch | OSError
                try:
                    result = preparer.prepare(batch, heartbeat.beat)
                except ConnectionError:
                    raise
                except OSError as error:  # e.g. a full disk for temporary files
                    result = error
                connection.send(result)
    except (EOFError, ConnectionError):  # the parent closed the connection, or has ended
        return
    finally:
        preparer.close()


@contextmanager
def _collect_garbage_rarely() -> Iterator[None]:
    """Look at all objects for garbage only rarely while the block runs.

    Preparing messages creates many objects and no cycles. With Python's thresholds, looking at them takes a third of
    the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
