"""Web pages to a file of documents, which goes on where it was stopped."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import orjson

from gumshoe.artifacts.storage import explain_os_errors, held_file, writable_directory, write_atomically
from gumshoe.documents.installed import check_installed
from gumshoe.documents.scraping.addresses import WantedPage
from gumshoe.documents.scraping.extraction import LIBRARIES, extractor
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.fetching import Fetcher, Page, Politeness
from gumshoe.documents.scraping.guard import Network, Resolve, resolve
from gumshoe.documents.scraping.page_cache import PageCache
from gumshoe.documents.scraping.web import web
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.terminal import Advance


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How pages are taken."""

    manners: Politeness
    workers: int = 8
    """Hosts that are asked at once; each is asked for one page at a time."""
    allowed: tuple[Network, ...] = ()
    """Networks that may be connected to beside the public internet."""
    cache: Path | None = None
    """A directory for pages that have an ETag or a date; None keeps none."""
    cache_bytes: int = 2 << 30
    """Most that is left there."""
    reading_seconds: float = 20.0
    """Longest time to find the text in one page."""
    retry_failed: bool = False
    """Ask for pages again whose failure was not one that may pass."""


@dataclass(frozen=True, slots=True)
class FailedPage:
    """A page that was not taken, and why."""

    url: str
    reason: str
    detail: str
    may_pass: bool
    """Whether the next run asks for it again."""


@dataclass(slots=True)
class ScrapeReport:
    """What a run of the scraper did."""

    wanted: int = 0
    """Pages that were asked for, each once."""
    already_there: int = 0
    """Pages that the file had."""
    written: int = 0
    """Pages that were added to it."""
    unchanged: int = 0
    """Those of them that came out of the cache, for their servers said that they are the same."""
    failed: list[FailedPage] = field(default_factory=list)
    """Pages that the file lacks; also those that an earlier run found to be lacking for good."""
    seconds: float = 0

    @property
    def reasons(self) -> dict[str, int]:
        """Failed pages by reason, the commonest first."""
        return dict(Counter(each.reason for each in self.failed).most_common())

    @property
    def may_pass(self) -> int:
        """Pages that another run may get."""
        return sum(each.may_pass for each in self.failed)


async def scrape(
    wanted: list[WantedPage],
    path: Path,
    settings: ScrapeSettings,
    advance: Advance,
    *,
    resolve: Resolve = resolve,
) -> ScrapeReport:
    """Take what a file of documents lacks of the wanted pages, and add it, a line a page.

    Beside the file, `NAME.failed.jsonl` lists what failed; what failed for good is not asked for again.

    Raises:
        UsageError: the arguments are invalid, or another process writes to the file; nothing was begun.
        StorageError: the file or the cache cannot be written to.
    """
    check_installed("scraping", LIBRARIES)
    if path.suffix != ".jsonl":
        raise UsageError(
            "scraping.output-not-jsonl", f"output file {path} must end in .jsonl, e.g. {path.with_suffix('.jsonl')}"
        )
    writable_directory(str(path.parent))
    started = time.monotonic()
    cache = PageCache(settings.cache, settings.cache_bytes) if settings.cache else None
    report = ScrapeReport(wanted=len(wanted))
    with _Output.opened(path, forget_failed=settings.retry_failed) as output:
        report.failed = [output.failed[page.url] for page in wanted if page.url in output.failed]
        missing = [page for page in wanted if page.url not in output.failed and page.url not in output.done]
        report.already_there = len(wanted) - len(missing) - len(report.failed)
        advance(total=len(missing))
        if missing:
            async with _fetcher(settings, cache, resolve, is_online=bool(output.done)) as fetcher:
                run = _ScrapeRun(fetcher, output, report, advance)
                await run.all(missing, settings.workers)
    if cache:
        cache.shrink()
    report.seconds = time.monotonic() - started
    return report


@asynccontextmanager
async def _fetcher(
    settings: ScrapeSettings, cache: PageCache | None, resolve: Resolve, *, is_online: bool
) -> AsyncIterator[Fetcher]:
    manners, workers = settings.manners, settings.workers
    with extractor(min(os.cpu_count() or 1, workers), settings.reading_seconds) as reader:
        async with web(manners.user_agent, workers, settings.allowed, resolve, is_online=is_online) as opened:
            yield Fetcher(opened, manners, reader, cache)


@dataclass(slots=True)
class _ScrapeRun:
    fetcher: Fetcher
    output: "_Output"
    report: ScrapeReport
    advance: Advance
    new_failures: int = 0

    async def all(self, pages: list[WantedPage], workers: int) -> None:
        """Take all of them: each host's in their order, of so many hosts at once, those with the most pages first."""
        hosts: dict[str, list[WantedPage]] = {}
        for page in pages:
            hosts.setdefault("" if page.fault else str(urlsplit(page.url).hostname), []).append(page)
        waiting = iter(sorted(hosts.values(), key=len, reverse=True))

        async def work() -> None:
            for host in waiting:
                for page in host:
                    await self._take(page)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(workers, len(hosts))):
                    group.create_task(work())
        except* GumshoeError as errors:
            raise errors.exceptions[0] from None

    async def _take(self, wanted: WantedPage) -> None:
        try:
            page = await self._page(wanted)
        except PageFailure as failure:
            failed = FailedPage(wanted.url, failure.reason, failure.detail, failure.may_pass)
            self.output.fail(failed)
            self.report.failed.append(failed)
            self.new_failures += 1
        else:
            self.output.write(_record(wanted, page))
            self.report.written += 1
            self.report.unchanged += page.is_unchanged
        self.advance(1, note=f"{self.report.written:,} written, {self.new_failures:,} failed")

    async def _page(self, wanted: WantedPage) -> Page:
        """
        Raises:
            PageFailure: it is not to be had. Whatever else its answer leads to is its own failure too: the others are
                taken all the same.
            StorageError: the cache cannot be written to.
        """
        if wanted.fault:
            raise wanted.fault
        try:
            return await self.fetcher.page(wanted.url)
        except (PageFailure, GumshoeError):
            raise
        except Exception as error:
            raise PageFailure("broken answer", f"{type(error).__name__}: {error}"[:200]) from error


def _record(wanted: WantedPage, page: Page) -> dict[str, Any]:
    """A line of the file."""
    moved = {"moved_to": page.url} if page.url != wanted.url else {}
    return {
        "id": wanted.document_id,
        "title": page.text.title,
        "text": page.text.text,
        "url": wanted.url,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        "metadata": {"site": str(urlsplit(wanted.url).hostname), **wanted.metadata, **moved},
    }


@dataclass(slots=True)
class _Output:
    """A file of documents that is added to, and the list of what failed beside it."""

    path: Path
    file: BinaryIO
    done: set[str]
    """Addresses of the documents that it had."""
    failed: dict[str, FailedPage]
    """Pages that had failed for good."""

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, forget_failed: bool) -> Iterator["_Output"]:
        """The file, held until the block or this process ends, with nothing half written in it.

        Raises:
            UsageError: another process has the file, or it holds something else.
        """
        with ExitStack() as held:
            with explain_os_errors(path):
                file = held.enter_context(held_file(path))
                done = {str(record["url"]) for record in _whole_lines(file, path, {"id", "text", "url"})}
                found = [] if forget_failed else _failures(_list_beside(path))
                lasting = {each.url: each for each in found if not each.may_pass and each.url not in done}
                write_atomically(_list_beside(path), BytesIO(b"".join(map(_line, map(asdict, lasting.values())))))
            yield cls(path, file, done, lasting)

    def write(self, record: dict[str, Any]) -> None:
        with explain_os_errors(self.path):
            self.file.write(_line(record))
            self.file.flush()

    def fail(self, failed: FailedPage) -> None:
        listed = _list_beside(self.path)
        with explain_os_errors(listed), listed.open("ab") as file:
            file.write(_line(asdict(failed)))


def _list_beside(path: Path) -> Path:
    return path.with_suffix(".failed.jsonl")


def _failures(path: Path) -> list[FailedPage]:
    if not path.exists():
        return []
    names = [each.name for each in fields(FailedPage)]
    with path.open("r+b") as file:
        return [FailedPage(**{name: record[name] for name in names}) for record in _whole_lines(file, path, names)]


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record) + b"\n"


def _whole_lines(file: BinaryIO, path: Path, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The records of a file; a last line that was cut off, as when a run was killed, is taken out of it, unless it is
    the first: who knows what the file is then.
    """
    file.seek(0)
    whole = 0
    for number, line in enumerate(file, 1):
        is_cut, fault = not line.endswith(b"\n"), ""
        try:
            record = orjson.loads(line)
            if not isinstance(record, dict) or not record.keys() >= set(names):
                fault = f"must be an object with {', '.join(sorted(names))}"
        except orjson.JSONDecodeError as error:
            fault = "" if is_cut and number > 1 else str(error)
        if fault:
            raise UsageError(
                "scraping.foreign-output",
                f"{path}:{number} was not written by `gumshoe documents scrape` ({fault}); choose another file, or "
                "remove it",
            )
        if is_cut:
            break
        whole += len(line)
        yield record
    file.truncate(whole)
