"""Fetch pages politely: follow robots.txt, send one request at a time to a host, with pauses, and use the cache.

A page with an ETag or a date is downloaded again only if it has changed.
"""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx
from tenacity import AsyncRetrying, RetryCallState, wait_exponential, wait_random_exponential

from gumshoe.documents.file_kinds import find_page_kind
from gumshoe.documents.page_requests import parse_refresh
from gumshoe.documents.scraping.extraction import Extractor, PageText
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.guard import normalize_url
from gumshoe.documents.scraping.page_cache import CachedPage, PageCache
from gumshoe.documents.scraping.page_responses import (
    REDIRECTS,
    TEMPORARY_STATUSES,
    explain_status,
    find_redirect_target,
    find_target,
)
from gumshoe.documents.scraping.robots import parse_robots
from gumshoe.documents.scraping.web import FetchLimits, HttpResponse, WebClient

if TYPE_CHECKING:
    from protego import Protego

_MAX_REDIRECTS = 5
_ROBOTS_BYTES = 512 << 10  # of robots.txt that are read; RFC 9309 requires at least 500 KiB
_MAX_HOST_FAILURES = 5  # in a row; then the host is skipped
_FRONT_PAGE_PATH = re.compile(r"/(?:(?:index|default|home)(?:\.\w+)?/?)?", re.I)  # paths of a front page
_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([^\s;\"']+)", re.I)


@dataclass(frozen=True, slots=True)
class Politeness:
    """Pauses and limits of requests. Times are in seconds."""

    user_agent: str
    delay: float = 1.0
    """Pause between a response of a host and the next request to it. A longer Crawl-delay of the host wins."""
    attempts: int = 4
    """Attempts per request, if the failure may be temporary."""
    backoff: float = 1.0
    """First pause before another attempt. Each is twice as long as the last, with a random factor from 0.5 to 1."""
    max_wait: float = 60.0
    """Maximum pause, whatever the host asks for."""
    page_seconds: float = 30.0
    """Maximum duration of one request, from the host lookup to the last byte."""
    page_bytes: int = 5 << 20
    """Maximum size of the decompressed body."""
    probe: bool = True
    """Request one page that cannot exist from each host, to learn how the host reports missing pages."""


@dataclass(slots=True)
class _Host:
    """State of one host."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0
    reading_robots: asyncio.Lock = field(default_factory=asyncio.Lock)
    robots: "dict[str, Protego | PageFailure]" = field(default_factory=dict)
    probing: asyncio.Lock = field(default_factory=asyncio.Lock)
    missing: "dict[str, FetchedPage | None]" = field(default_factory=dict)
    failures: int = 0  # consecutive requests that failed temporarily in all attempts
    skip_reason: str = ""
    """Reason for not sending more requests to it in this run. Empty if requests may be sent."""


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A page that was fetched."""

    url: str
    """Its URL after redirects."""
    text: PageText
    is_unchanged: bool
    """True if it came from the cache, because its server said that it has not changed."""


@dataclass(frozen=True, slots=True)
class _FetchedPage:
    url: httpx.URL
    content_type: str
    body: bytes
    is_unchanged: bool
    refresh: str = ""
    """URL that the server sends the browser to in a header. It may be relative."""


class Fetcher:
    """Fetch pages of many hosts concurrently, one page at a time per host."""

    def __init__(self, web: WebClient, politeness: Politeness, extractor: Extractor, cache: PageCache | None) -> None:
        self._web = web
        self._politeness = politeness
        self._extractor = extractor
        self._cache = cache
        self._hosts: dict[str, _Host] = {}
        self._bounds = FetchLimits(politeness.page_seconds, politeness.page_bytes)

    async def fetch(self, address: str) -> FetchedPage:
        """Return title and main text of the page at a URL.

        Raises:
            PageFailure: if it is not available, or is not a page with text.
            StorageError: if the cache is not writable.
        """
        url = normalize_url(address)
        page, found = await self._fetch_and_read(url)
        await self._check_exists(url, found, page)
        return page

    async def _fetch_and_read(self, url: httpx.URL) -> tuple[FetchedPage, httpx.URL]:
        """Fetch and read a page, and those that it goes to by itself. They count as redirects, with all checks."""
        left = _MAX_REDIRECTS
        while True:
            fetched, left = await self._fetch(url, left)
            if fetched.refresh:
                target = find_target(fetched.url, fetched.refresh)
            else:
                page = await self._read(fetched)
                if not page.text.refresh:
                    return page, fetched.url
                target = find_target(fetched.url, page.text.refresh)
                if target == fetched.url:
                    return _require_content(page), fetched.url
            if left == 0:
                raise PageFailure("redirects", f"more than {_MAX_REDIRECTS} redirects in a row, the last to {target}")
            url, left = target, left - 1

    async def _fetch(self, url: httpx.URL, redirects: int = _MAX_REDIRECTS) -> tuple[_FetchedPage, int]:
        """Fetch a URL and follow redirects, with all checks for each. Return how many may still follow."""
        for left in range(redirects, -1, -1):
            await self._check_robots(url)
            cached = self._cache.get(str(url)) if self._cache else None
            answer = await self._request(url, self._bounds, _make_conditional_headers(cached))
            if answer.status in REDIRECTS:
                url = find_redirect_target(url, answer)
                continue
            if answer.status == HTTPStatus.NOT_MODIFIED and cached is not None:
                return _FetchedPage(url, cached.content_type, cached.body, is_unchanged=True), left
            if answer.status != HTTPStatus.OK:
                raise explain_status(answer)
            content_type = answer.headers.get("content-type", "")
            self._cache_page(url, answer, content_type)
            refresh = parse_refresh(answer.headers.get("refresh", "")) or ""
            is_same = not refresh or find_target(url, refresh) == url
            found = _FetchedPage(url, content_type, answer.body, is_unchanged=False, refresh="" if is_same else refresh)
            return found, left
        raise PageFailure("redirects", f"more than {_MAX_REDIRECTS} redirects in a row, the last to {url}")

    def _cache_page(self, url: httpx.URL, answer: HttpResponse, content_type: str) -> None:
        etag, modified = answer.headers.get("etag", ""), answer.headers.get("last-modified", "")
        may_store = "no-store" not in answer.headers.get("cache-control", "").lower()
        if self._cache and may_store and (etag or modified):
            self._cache.put(str(url), CachedPage(etag, modified, content_type, answer.body))

    async def _read(self, fetched: _FetchedPage) -> FetchedPage:
        kind = find_page_kind(fetched.body, fetched.content_type, fetched.url.path)
        if kind is None:
            raise PageFailure("content type", fetched.content_type or "the server sent none, and the body is not HTML")
        charset = _CHARSET.search(fetched.content_type)
        text = await self._extractor.extract_async(fetched.body, kind, charset[1] if charset else None)
        return FetchedPage(str(fetched.url), text, fetched.is_unchanged)

    async def _check_exists(self, requested: httpx.URL, found: httpx.URL, page: FetchedPage) -> None:
        """Check that a response with status 200 is a real page.

        Raises:
            PageFailure: if it is how the host reports missing pages.
        """
        if page.text.is_missing_page:
            header = (page.text.title or page.text.text)[:80]
            raise PageFailure("not found", f"answered with 200, but says that it does not exist: {header}")
        is_same = found.host.removeprefix("www.") == requested.host.removeprefix("www.")
        if found.path == "/" and is_same and not _FRONT_PAGE_PATH.fullmatch(requested.path):
            raise PageFailure("not found", "redirects to the front page")
        missing = await self._probe_missing_page(found)
        if missing is None:
            return
        if missing.text.is_similar_to(page.text) or (found != requested and missing.url == str(found)):
            raise PageFailure("not found", "answered with 200, but with the same page as an address that cannot exist")

    async def _probe_missing_page(self, url: httpx.URL) -> FetchedPage | None:
        """Return the page that an origin sends with status 200 for a URL that cannot exist, or None if it sends 404.

        Raises:
            PageFailure: if the host does not answer now; the next page tries again.
        """
        host, origin = self._host(url), _origin(url)
        if not self._politeness.probe:
            return None
        async with host.probing:
            if origin not in host.missing:
                try:
                    page, _ = await self._fetch_and_read(url.join(f"/{secrets.token_hex(16)}"))
                except PageFailure as failure:
                    if failure.may_pass:
                        detail = (
                            f"cannot tell how {origin} reports missing pages: {failure.detail}; skip with --no-probe"
                        )
                        raise PageFailure(failure.reason, detail, may_pass=True) from None
                    host.missing[origin] = None
                else:
                    host.missing[origin] = page
        return host.missing[origin]

    async def _check_robots(self, url: httpx.URL) -> None:
        """Check that robots.txt allows a URL.

        Raises:
            PageFailure: if the host disallows the page, or its robots.txt is not available.
        """
        host, origin = self._host(url), _origin(url)
        async with host.reading_robots:
            if origin not in host.robots:
                host.robots[origin] = await self._read_robots(url.join("/robots.txt"))
        rules = host.robots[origin]
        if isinstance(rules, PageFailure):
            raise PageFailure(rules.reason, f"{origin}/robots.txt: {rules.detail}", may_pass=rules.may_pass)
        if not rules.can_fetch(str(url), self._politeness.user_agent):
            raise PageFailure("robots.txt", f"disallowed by {origin}/robots.txt")

    async def _read_robots(self, url: httpx.URL) -> "Protego | PageFailure":
        """Return the rules of a robots.txt. A missing file (4xx) allows everything.

        If it is unavailable for another reason, nothing may be fetched (RFC 9309, 2.3.1).
        """
        bounds = FetchLimits(self._politeness.page_seconds, _ROBOTS_BYTES, truncates=True)
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                answer = await self._request(url, bounds)
                if answer.status not in REDIRECTS:
                    break
                url = find_redirect_target(url, answer)
            else:
                raise PageFailure("redirects", f"more than {_MAX_REDIRECTS} redirects in a row")
            if answer.status == HTTPStatus.OK:
                return parse_robots(answer.body, self._politeness.user_agent)
            if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return parse_robots(b"", self._politeness.user_agent)
            raise explain_status(answer)
        except PageFailure as failure:
            return failure

    async def _request(
        self, url: httpx.URL, bounds: FetchLimits, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Send a request, and retry if the failure may be temporary. The pauses hold for the whole host."""
        host = self._host(url)
        if host.skip_reason:
            raise PageFailure("host set aside", host.skip_reason, may_pass=True)

        async def postpone(seconds: float) -> None:
            host.free_at = max(host.free_at, time.monotonic() + min(seconds, self._politeness.max_wait))

        def is_retried(state: RetryCallState) -> bool:
            failure = state.outcome.exception() if state.outcome is not None else None
            return isinstance(failure, PageFailure) and not self._is_final(failure, state.attempt_number, host)

        half = self._politeness.backoff / 2
        pause = wait_exponential(half) + wait_random_exponential(half)
        async for attempt in AsyncRetrying(retry=is_retried, wait=pause, sleep=postpone):
            with attempt:
                async with self._wait_for_turn(host, url):
                    answer = await self._web.get(url, bounds, headers)
                if answer.status in TEMPORARY_STATUSES:
                    failure = explain_status(answer)
                    await postpone(failure.wait or 0)
                    raise failure
        host.failures = 0
        return answer

    def _is_final(self, failure: PageFailure, attempt: int, host: _Host) -> bool:
        """Return True if a request is not retried. May decide to skip the host from now on."""
        if not failure.may_pass:
            return True
        if failure.wait is not None and failure.wait > self._politeness.max_wait:
            host.skip_reason = f"the host asks for a pause of {failure.wait:,.0f} seconds"
            return True
        if attempt < self._politeness.attempts:
            return False
        host.failures += 1
        if host.failures >= _MAX_HOST_FAILURES:
            host.skip_reason = f"{host.failures} requests in a row failed, the last with {failure}"
        return True

    @asynccontextmanager
    async def _wait_for_turn(self, host: _Host, url: httpx.URL) -> AsyncIterator[None]:
        """Hold the host's only slot, after the pause since the last request is over."""
        async with host.turn:
            await asyncio.sleep(max(0.0, host.free_at - time.monotonic()))
            try:
                yield
            finally:
                rules = host.robots.get(_origin(url))
                requested = 0.0
                if rules is not None and not isinstance(rules, PageFailure):
                    requested = rules.crawl_delay(self._politeness.user_agent) or 0.0
                pause = max(self._politeness.delay, min(requested, self._politeness.max_wait))
                host.free_at = time.monotonic() + pause

    def _host(self, url: httpx.URL) -> _Host:
        return self._hosts.setdefault(url.host, _Host())


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _make_conditional_headers(cached: CachedPage | None) -> dict[str, str]:
    if cached is None:
        return {}
    headers = {"If-None-Match": cached.etag, "If-Modified-Since": cached.modified}
    return {name: value for name, value in headers.items() if value}


def _require_content(page: FetchedPage) -> FetchedPage:
    """Return a page that only reloads itself, if it has a text."""
    if not page.text.text:
        raise PageFailure("no text", "the page only reloads itself")
    return page
