"""Pages from their servers, politely: as robots.txt says, one request at a time to a host, with pauses, and never the
same page twice for want of asking whether it changed.
"""

import asyncio
import itertools
import random
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx

from gumshoe.documents.scraping.extraction import Extractor, Kind, PageText
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.guard import normal_address
from gumshoe.documents.scraping.page_cache import CachedPage, PageCache
from gumshoe.documents.scraping.web import Bounds, HttpResponse, Web

if TYPE_CHECKING:
    from protego import Protego

_MOST_REDIRECTS = 5
_ROBOTS_BYTES = 512 << 10  # of robots.txt that count; RFC 9309 wants 500 KiB at least
_FAILURES_OF_A_HOST = 5  # in a row, then it is left alone
_FRONT = re.compile(r"/(?:(?:index|default|home)(?:\.\w+)?/?)?", re.I)  # paths of a front page
_REDIRECTS = {301, 302, 303, 307, 308}
_GONE = {404, 410}
_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([^\s;\"']+)", re.I)
_AGENT = re.compile(r"\s*user[-\s]*agent(?:\s*:|\s|$)", re.I)  # a line of robots.txt
_NOBODY = "\0"  # in no name of ours
_MAY_PASS = {408, 421, 425, 429, 500, 502, 503, 504, 507, 508, 509, 520, 521, 522, 523, 524, 527, 529}
_KINDS: dict[str, Kind] = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/plain": "text",
    "application/pdf": "pdf",
}


@dataclass(frozen=True, slots=True)
class Politeness:
    """How pages are asked for. Times are in seconds."""

    user_agent: str
    delay: float = 1.0
    """Between an answer of a host and the next request to it; its own Crawl-delay where that is longer."""
    tries: int = 4
    """Of one request, where a failure may pass."""
    backoff: float = 1.0
    """The first pause before another try; each is twice as long as the last, at random from half of it on."""
    longest_wait: float = 60.0
    """The longest pause that a host gets, whatever it asks for."""
    page_seconds: float = 30.0
    """Longest time of one request, from looking its host up to the last byte."""
    page_bytes: int = 5 << 20
    """Longest body, unpacked."""
    probe: bool = True
    """Ask each host once for a page that cannot be there, to know how it says so."""


@dataclass(slots=True)
class _Host:
    """What is known of one host, and whose turn it is there."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0
    reading_robots: asyncio.Lock = field(default_factory=asyncio.Lock)
    robots: "dict[str, Protego | PageFailure]" = field(default_factory=dict)
    probing: asyncio.Lock = field(default_factory=asyncio.Lock)
    missing: "dict[str, Page | None]" = field(default_factory=dict)
    failures: int = 0  # requests in a row that failed, after all tries, for what may pass
    set_aside: str = ""
    """Why it is not asked any more in this run."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page that was taken."""

    url: str
    """Where it was, after redirects."""
    text: PageText
    is_unchanged: bool
    """Whether it came out of the cache, its server having said that it is the same."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    url: httpx.URL
    content_type: str
    body: bytes
    is_unchanged: bool


class Fetcher:
    """Takes pages of many hosts at once, one at a time of each."""

    def __init__(self, web: Web, manners: Politeness, extractor: Extractor, cache: PageCache | None) -> None:
        self._web = web
        self._manners = manners
        self._extractor = extractor
        self._cache = cache
        self._hosts: dict[str, _Host] = {}
        self._bounds = Bounds(manners.page_seconds, manners.page_bytes)

    async def page(self, address: str) -> Page:
        """Title and main text of the page at an address.

        Raises:
            PageFailure: it is not to be had, or is no page with text.
            StorageError: the cache cannot be written to.
        """
        url = normal_address(address)
        fetched = await self._fetched(url)
        page = await self._read(fetched)
        await self._check_there(url, fetched.url, page)
        return page

    async def _fetched(self, url: httpx.URL) -> _Fetched:
        """What is at an address, or where that leads; each step as carefully as the first."""
        for _ in range(_MOST_REDIRECTS + 1):
            await self._check_robots(url)
            kept = self._cache.get(str(url)) if self._cache else None
            answer = await self._asked(url, self._bounds, _conditions(kept))
            if answer.status in _REDIRECTS:
                url = _target(url, answer)
                continue
            if answer.status == HTTPStatus.NOT_MODIFIED and kept is not None:
                return _Fetched(url, kept.content_type, kept.body, is_unchanged=True)
            if answer.status != HTTPStatus.OK:
                raise _refusal(answer)
            content_type = answer.headers.get("content-type", "")
            self._keep(url, answer, content_type)
            return _Fetched(url, content_type, answer.body, is_unchanged=False)
        raise PageFailure("redirects", f"more than {_MOST_REDIRECTS} redirects in a row, the last to {url}")

    def _keep(self, url: httpx.URL, answer: HttpResponse, content_type: str) -> None:
        etag, modified = answer.headers.get("etag", ""), answer.headers.get("last-modified", "")
        may = "no-store" not in answer.headers.get("cache-control", "").lower()
        if self._cache and may and (etag or modified):
            self._cache.put(str(url), CachedPage(etag, modified, content_type, answer.body))

    async def _read(self, fetched: _Fetched) -> Page:
        kind = _KINDS.get(fetched.content_type.partition(";")[0].strip().lower())
        if not fetched.content_type:  # servers that say nothing
            start = fetched.body[:512].lstrip().lower()
            kind = "pdf" if start.startswith(b"%pdf-") else "html" if start.startswith(b"<") else None
        if kind is None:
            raise PageFailure("content type", fetched.content_type or "the server sent none, and the body is not HTML")
        charset = _CHARSET.search(fetched.content_type)
        text = await self._extractor.text(fetched.body, kind, charset[1] if charset else None)
        return Page(str(fetched.url), text, fetched.is_unchanged)

    async def _check_there(self, asked: httpx.URL, found: httpx.URL, page: Page) -> None:
        """
        Raises:
            PageFailure: the answer, although it says 200, is what the host says of pages that are not there.
        """
        if page.text.says_missing:
            said = (page.text.title or page.text.text)[:80]
            raise PageFailure("not found", f"answered with 200, but says that it does not exist: {said}")
        is_same = found.host.removeprefix("www.") == asked.host.removeprefix("www.")
        if found.path == "/" and is_same and not _FRONT.fullmatch(asked.path):
            raise PageFailure("not found", "redirects to the front page")
        missing = await self._missing(found)
        if missing is None:
            return
        if missing.text.is_like(page.text) or (found != asked and missing.url == str(found)):
            raise PageFailure("not found", "answered with 200, but with the same page as an address that cannot exist")

    async def _missing(self, url: httpx.URL) -> Page | None:
        """What an origin answers with 200 for an address where nothing can be; None where it says 404, as it should.

        Raises:
            PageFailure: it does not answer now; the next page asks it again.
        """
        host, origin = self._host(url), _origin(url)
        if not self._manners.probe:
            return None
        async with host.probing:
            if origin not in host.missing:
                try:
                    page = await self._read(await self._fetched(url.join(f"/{secrets.token_hex(16)}")))
                except PageFailure as failure:
                    if failure.may_pass:
                        told = f"cannot tell how {origin} reports missing pages: {failure.detail}; skip with --no-probe"
                        raise PageFailure(failure.reason, told, may_pass=True) from None
                    host.missing[origin] = None
                else:
                    host.missing[origin] = page
        return host.missing[origin]

    async def _check_robots(self, url: httpx.URL) -> None:
        """
        Raises:
            PageFailure: the host does not want the page to be taken, or does not say whether.
        """
        host, origin = self._host(url), _origin(url)
        async with host.reading_robots:
            if origin not in host.robots:
                host.robots[origin] = await self._robots(url.join("/robots.txt"))
        rules = host.robots[origin]
        if isinstance(rules, PageFailure):
            raise PageFailure(rules.reason, f"{origin}/robots.txt: {rules.detail}", may_pass=rules.may_pass)
        if not rules.can_fetch(str(url), self._manners.user_agent):
            raise PageFailure("robots.txt", f"disallowed by {origin}/robots.txt")

    async def _robots(self, url: httpx.URL) -> "Protego | PageFailure":
        """What a robots.txt says. One that is not there (4xx) allows everything; where it cannot be had for another
        reason, nothing is asked for (RFC 9309, 2.3.1).
        """
        from protego import Protego

        bounds = Bounds(self._manners.page_seconds, _ROBOTS_BYTES, is_cut=True)
        try:
            for _ in range(_MOST_REDIRECTS + 1):
                answer = await self._asked(url, bounds)
                if answer.status not in _REDIRECTS:
                    break
                url = _target(url, answer)
            else:
                raise PageFailure("redirects", f"more than {_MOST_REDIRECTS} redirects in a row")
            if answer.status == HTTPStatus.OK:
                return Protego.parse(_without_others(answer.body.decode("utf-8", "replace"), self._manners.user_agent))
            if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return Protego.parse("")
            raise _refusal(answer)
        except PageFailure as failure:
            return failure

    async def _asked(self, url: httpx.URL, bounds: Bounds, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """The answer to a request, which is made again where its failure may pass."""
        host = self._host(url)
        if host.set_aside:
            raise PageFailure("host set aside", host.set_aside, may_pass=True)
        for attempt in itertools.count(1):
            try:
                async with self._turn(host, url):
                    answer = await self._web.get(url, bounds, headers)
                if answer.status in _MAY_PASS:
                    raise _refusal(answer)
            except PageFailure as failure:
                is_final = self._is_final(failure, attempt, host)
                backoff = 0.0 if is_final else self._manners.backoff * 2 ** (attempt - 1)
                pause = max(failure.wait or 0, backoff * random.uniform(0.5, 1))  # noqa: S311
                host.free_at = max(host.free_at, time.monotonic() + min(pause, self._manners.longest_wait))
                if is_final:
                    raise
            else:
                host.failures = 0
                return answer
        raise AssertionError("counting does not end")

    def _is_final(self, failure: PageFailure, attempt: int, host: _Host) -> bool:
        """Whether a request is not made again; its host may not be asked for anything any more."""
        if not failure.may_pass:
            return True
        if failure.wait is not None and failure.wait > self._manners.longest_wait:
            host.set_aside = f"the host asks for a pause of {failure.wait:,.0f} seconds"
            return True
        if attempt < self._manners.tries:
            return False
        host.failures += 1
        if host.failures >= _FAILURES_OF_A_HOST:
            host.set_aside = f"{host.failures} requests in a row failed, the last with {failure}"
        return True

    @asynccontextmanager
    async def _turn(self, host: _Host, url: httpx.URL) -> AsyncIterator[None]:
        """One request's turn at a host, when the pause since the last is over."""
        async with host.turn:
            await asyncio.sleep(max(0.0, host.free_at - time.monotonic()))
            try:
                yield
            finally:
                rules = host.robots.get(_origin(url))
                asked = 0.0
                if rules is not None and not isinstance(rules, PageFailure):
                    asked = rules.crawl_delay(self._manners.user_agent) or 0.0
                pause = max(self._manners.delay, min(asked, self._manners.longest_wait))
                host.free_at = time.monotonic() + pause

    def _host(self, url: httpx.URL) -> _Host:
        return self._hosts.setdefault(url.host, _Host())


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _without_others(robots: str, agent: str) -> str:
    """A robots.txt in which all agents are one but the one that is ours by it, or `*`: Protego keeps every rule for
    every agent of its group, and there is room for millions of such pairs.
    """
    lines = robots.splitlines()
    named = {
        place: line[found.end() :].partition("#")[0].strip().lower()
        for place, line in enumerate(lines)
        if (found := _AGENT.match(line))
    }
    names = {name if name == "*" else name.replace("*", "") for name in named.values()}
    ours = [name for name in sorted(names - {""}) if re.search(rf"(?<![\w-]){re.escape(name)}", agent.lower())]
    best = max(ours, key=len, default="*")
    for place, name in named.items():
        is_best = best in {name, name.replace("*", "")}
        lines[place] = f"User-agent: {best if is_best else _NOBODY}"
    return "\n".join(lines)


def _conditions(kept: CachedPage | None) -> dict[str, str]:
    if kept is None:
        return {}
    named = {"If-None-Match": kept.etag, "If-Modified-Since": kept.modified}
    return {name: value for name, value in named.items() if value}


def _target(url: httpx.URL, answer: HttpResponse) -> httpx.URL:
    """Where a redirect leads.

    Raises:
        PageFailure: nowhere that may be asked.
    """
    to = answer.headers.get("location", "")
    if not to:
        raise PageFailure("redirects", f"{url} redirects without a location")
    with suppress(UnicodeError):  # addresses that are not escaped are sent in UTF-8
        to = to.encode("latin-1").decode("utf-8")
    try:
        return normal_address(str(url.join(to)))
    except (httpx.InvalidURL, ValueError) as error:
        raise PageFailure("redirects", f"{url} redirects to an invalid address ({error})") from None
    except PageFailure as failure:
        raise PageFailure("redirects", f"{url} redirects to {to[:200]}: {failure.detail}") from None


def _refusal(answer: HttpResponse) -> PageFailure:
    """What a status that is no success says of a page."""
    try:
        told = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    except ValueError:
        told = str(answer.status)
    if answer.status in _GONE:
        return PageFailure("not found", told)
    return PageFailure("status", told, may_pass=answer.status in _MAY_PASS, wait=_retry_after(answer))


def _retry_after(answer: HttpResponse) -> float | None:
    """Seconds until a server wants to be asked again, as a number or a date (RFC 9110, 10.2.3)."""
    said = answer.headers.get("retry-after", "").strip()
    if said.isdecimal():
        return float(said)
    try:
        when = parsedate_to_datetime(said)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, (when - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None
