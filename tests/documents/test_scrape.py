"""The scraper against a server with every kind of fault."""

import asyncio
import gzip
import itertools
import json
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from gumshoe.documents.document import page_id
from gumshoe.documents.scraping import extraction
from gumshoe.documents.scraping.addresses import RecordFields, WantedPage, list_wanted_pages
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.fetching import Politeness
from gumshoe.documents.scraping.guard import Resolve, is_allowed, normalize_url, parse_network
from gumshoe.documents.scraping.scrape import FailedPage, ScrapeReport, ScrapeSettings, scrape_pages
from gumshoe.extraction.processes import BoundedProcesses, open_processes
from tests.certificates import make_certificate
from tests.conftest import CommandResult
from tests.documents.file_samples import SCAN, placed_pdf
from tests.documents.pages import pdf
from tests.documents.site import Site, Visit, page, running_site
from tests.errors import raises
from tests.waiting import Clock, wait_until

HOUR = 3600.0
POLITENESS = Politeness(
    "Testbot/1.0", delay=0, attempts=2, backoff=0.01, max_wait=60, page_seconds=HOUR, page_bytes=200_000
)
HERE = ip_network("127.0.0.0/8")


async def resolve_to_localhost(_: str, __: int) -> list[str]:
    """Resolve every name to this machine."""
    return ["127.0.0.1"]


@pytest.fixture(scope="module")
def processes() -> Iterator[BoundedProcesses]:
    """Yield the processes of all scrapers here: starting and ending them takes longer than most tests."""
    with open_processes(2, HOUR, preload=(extraction.__name__, "trafilatura")) as bounded:
        yield bounded


@pytest.fixture(autouse=True)
def shared_processes(processes: BoundedProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    def share(count: int, seconds: float, preload: tuple[str, ...]) -> AbstractContextManager[BoundedProcesses]:
        assert count > 0
        assert "trafilatura" in preload
        return nullcontext(processes.with_limit(seconds))

    monkeypatch.setattr(extraction, "open_processes", share)


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as running:
        yield running


@pytest.fixture
def pauses(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let pauses between requests elapse on the clock, and record them in seconds."""
    recorded: list[float] = []
    really_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        recorded.append(seconds)
        clock.advance(seconds)
        await really_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return recorded


class Scraper:
    """Scrape URLs into one file."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "pages.jsonl"
        self.settings = ScrapeSettings(POLITENESS, allowed=(HERE,))

    def __call__(self, *urls: str, resolve: Resolve = resolve_to_localhost, **politeness: Any) -> ScrapeReport:
        source = self.path.with_name("addresses.txt")
        source.write_text("\n".join(urls))
        settings = replace(self.settings, politeness=replace(self.settings.politeness, **politeness))
        wanted = list_wanted_pages(str(source), RecordFields())

        async def run() -> ScrapeReport:
            ticking = asyncio.create_task(tick())
            try:
                return await scrape_pages(wanted, self.path, settings, lambda *_, **__: None, resolve=resolve)
            finally:
                ticking.cancel()

        return asyncio.run(run())

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def failure(self, url: str, **politeness: Any) -> FailedPage:
        """Return the only failure of a URL that cannot be scraped."""
        (failed,) = self(url, **politeness).failed
        assert failed.url == url
        assert not self.documents
        return failed


async def tick(pause: Callable[[float], Any] = asyncio.sleep) -> None:
    """Wake the event loop repeatedly, so that it notices when a test moves the clock."""
    while True:
        await pause(0.01)


@pytest.fixture
def scraper(tmp_path: Path) -> Scraper:
    return Scraper(tmp_path)


def good(visit: Visit) -> None:
    visit.answer(page(f"Disease of {visit.path}"))


def test_a_page_becomes_a_document_without_its_menus(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = lambda visit: visit.answer(page("Fenwick disease", "It itches.", "It passes after a week."))
    report = scraper(site.url("/a#symptoms"))
    (document,) = scraper.documents
    assert (report.written, report.failed) == (1, [])
    assert (document["id"], document["url"]) == (page_id(site.url("/a")), site.url("/a"))
    assert document["title"] == "Fenwick disease"
    assert "It passes after a week." in document["text"]
    assert "Topic" not in document["text"]
    assert "rights" not in document["text"]
    assert document["metadata"] == {"site": "site.example"}


# robots.txt and pauses -----------------------------------------------------------------------------------------------


def test_disallowed_pages_are_not_requested(site: Site, scraper: Scraper) -> None:
    site.paths["/robots.txt"] = lambda visit: visit.answer("User-agent: testbot\nDisallow: /private", kind="text/plain")
    site.paths["/private/a"] = site.paths["/open"] = good
    report = scraper(site.url("/private/a"), site.url("/open"))
    assert [(each.reason, each.may_pass) for each in report.failed] == [("robots.txt", False)]
    assert [each["url"] for each in scraper.documents] == [site.url("/open")]
    assert not site.count_requests("/private/a")
    assert site.count_requests("/robots.txt") == 1


def test_a_robots_txt_that_is_missing_allows_everything(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = good
    assert scraper(site.url("/a")).written == 1


def test_an_unavailable_robots_txt_disallows_everything(site: Site, scraper: Scraper) -> None:
    site.paths["/robots.txt"] = lambda visit: visit.answer("", status=503)
    site.paths["/a"] = good
    failed = scraper.failure(site.url("/a"))
    assert failed.may_pass
    assert "robots.txt: 503" in failed.detail
    assert not site.count_requests("/a")


@pytest.mark.parametrize(
    ("robots", "taken"),
    [
        ("User-agent: test\nDisallow: /a\nUser-agent: testbot*\nUser-agent: other\nDisallow: /b\n", "a"),
        ("User-agent: other\nDisallow: /a\n\nUser-agent: *\nuser agent other\nDisallow: /b # this\n", "a"),
        ("User-agent: other\nDisallow: /\nUser-agent: estbot\nDisallow: /\n", "ab"),
        ("User-agent: *\nDisallow: /\nUser-agent: TESTBOT # us\nUseragent: other\nAllow: /a\nDisallow: /b", "a"),
    ],
)
def test_the_longest_matching_agent_of_robots_txt_counts(site: Site, scraper: Scraper, robots: str, taken: str) -> None:
    site.paths["/robots.txt"] = lambda visit: visit.answer(robots, kind="text/plain")
    site.paths["/a"] = site.paths["/b"] = good
    scraper(site.url("/a"), site.url("/b"), probe=False)
    assert "".join(document["url"][-1] for document in scraper.documents) == taken


@pytest.mark.ci
def test_a_robots_txt_with_many_agents_needs_little_memory(site: Site, scraper: Scraper) -> None:
    agents = "".join(f"User-agent: {number}\n" for number in range(2000))
    rules = "".join(f"Disallow: /x{number}\n" for number in range(2000))
    site.paths["/robots.txt"] = lambda visit: visit.answer(f"{agents}User-agent: testbot\n{rules}", kind="text/plain")
    site.paths["/a"] = site.paths["/x7"] = good
    tracemalloc.start()
    try:
        report = scraper(site.url("/a"), site.url("/x7"), probe=False)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ([each.url for each in report.failed], report.written) == ([site.url("/x7")], 1)
    assert most < 50_000_000


def test_a_redirect_to_a_disallowed_page_is_not_followed(site: Site, scraper: Scraper) -> None:
    def robots(visit: Visit) -> None:
        visit.answer("User-agent: *\nDisallow: /there" if "other" in visit.headers["Host"] else "", kind="text/plain")

    site.paths["/robots.txt"] = robots
    site.paths["/here"] = lambda visit: visit.answer("", status=302, Location=site.url("/there", "other.example"))
    site.paths["/there"] = good
    assert scraper.failure(site.url("/here")).reason == "robots.txt"
    assert not site.count_requests("/there")


@pytest.mark.usefixtures("pauses")
def test_hosts_are_concurrent_and_each_gets_one_request_at_a_time(site: Site, scraper: Scraper) -> None:
    names = ("one.example", "two.example")
    under_way: list[str] = []
    meeting = threading.Barrier(len(names))

    def counted(visit: Visit) -> None:
        host = visit.headers["Host"]
        assert host not in under_way
        under_way.append(host)
        if visit.path == "/0":
            meeting.wait()  # wait for the other host's request
        under_way.remove(host)
        good(visit)

    site.paths |= {f"/{number}": counted for number in range(3)}
    urls = [site.url(f"/{number}", name) for name in names for number in range(3)]
    # All pauses of one host together are shorter than the other host's connection deadline.
    assert scraper(*urls, delay=2, probe=False).written == 6
    for name in names:
        times = [request.at for request in site.requests if request.host == name]
        assert len(times) == 4  # including robots.txt
        assert all(later - earlier >= 1.9 for earlier, later in itertools.pairwise(times))


def test_a_crawl_delay_is_kept_up_to_a_limit(site: Site, scraper: Scraper, pauses: list[float]) -> None:
    site.paths["/robots.txt"] = lambda visit: visit.answer("User-agent: *\nCrawl-delay: 500", kind="text/plain")
    site.paths["/a"] = site.paths["/b"] = good
    assert scraper(site.url("/a"), site.url("/b"), max_wait=40, probe=False).written == 2
    assert max(pauses) <= 40
    asked = [request.at for request in site.requests]
    assert asked[2] - asked[1] >= 39.9


def test_requests_have_a_user_agent(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = good
    scraper(site.url("/a"), user_agent="Elbow/2 (+https://elbow.example)")
    assert {request.headers["User-Agent"] for request in site.requests} == {"Elbow/2 (+https://elbow.example)"}


# Permitted addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
        "0.0.0.0", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.0.192", "168.63.129.16",
        "198.18.0.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fec0::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "2001:0:7f00:1::1",
    ],
)  # fmt: skip
def test_non_public_addresses_are_rejected(address: str) -> None:
    assert not is_allowed(address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed(address)


def test_an_allowed_network_allows_nothing_else() -> None:
    allowed = [parse_network("10.0.0.0/8")]
    assert is_allowed("10.9.8.7", allowed)
    assert is_allowed("::ffff:10.9.8.7", allowed)
    assert not is_allowed("127.0.0.1", allowed)
    assert not is_allowed("169.254.169.254", allowed)
    with raises("scraping.invalid-network", "10.0.0.0/99"):
        parse_network("10.0.0.0/99")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_localhost_is_rejected_in_any_notation(site: Site, scraper: Scraper, host: str) -> None:
    from gumshoe.documents.scraping.guard import resolve_host

    scraper.settings = replace(scraper.settings, allowed=())
    (failed,) = scraper(f"http://{host}:{site.port}/a", resolve=resolve_host).failed
    assert failed.reason in {"private address", "no such host"}
    assert not site.requests


def test_a_name_with_one_private_address_is_rejected(site: Site, scraper: Scraper) -> None:
    async def both(_: str, __: int) -> list[str]:
        return ["93.184.216.34", "127.0.0.1"]

    scraper.settings = replace(scraper.settings, allowed=())
    failed = scraper.failure(site.url("/a"), resolve=both)
    assert failed.reason == "private address"
    assert "127.0.0.1" in failed.detail


def test_dns_rebinding_is_prevented(site: Site, scraper: Scraper) -> None:
    """Simulate DNS rebinding: the checked address is used, and each new connection is checked again."""
    asked: list[str] = []

    async def rebinding(host: str, _: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1" if len(asked) == 1 else "127.0.0.2"]

    def closing(visit: Visit) -> None:
        visit.begin()

    site.paths["/robots.txt"] = closing
    site.paths["/a"] = good
    scraper.settings = replace(scraper.settings, allowed=(ip_network("127.0.0.1/32"),))
    failed = scraper.failure(site.url("/a"), resolve=rebinding)
    assert failed.reason == "private address"
    assert "127.0.0.2" in failed.detail
    assert len(asked) == 2
    assert not site.count_requests("/a")


def test_a_redirect_to_a_private_address_is_not_followed(site: Site, scraper: Scraper) -> None:
    async def two(host: str, _: int) -> list[str]:
        return ["127.0.0.1" if host == "site.example" else "169.254.169.254"]

    site.paths["/a"] = lambda visit: visit.answer("", status=302, Location="http://metadata.example/latest/meta-data/")
    scraper.settings = replace(scraper.settings, allowed=(ip_network("127.0.0.1/32"),))
    failed = scraper.failure(site.url("/a"), resolve=two)
    assert failed.reason == "private address"
    assert "169.254.169.254" in failed.detail
    assert not failed.may_pass


@pytest.mark.parametrize(
    ("location", "value"),
    [
        ("file:///etc/passwd", "http://"),
        ("gopher://site.example/", "http://"),
        ("http://user:secret@site.example/b", "user name"),
        ("http://site.example:22/", "22"),
        ("http://[::1", "invalid address"),
        ("http://a\xff\xfe b/", ""),
        ("", "without a location"),
    ],
)
def test_a_redirect_to_an_invalid_url_is_not_followed(site: Site, scraper: Scraper, location: str, value: str) -> None:
    site.paths["/a"] = lambda visit: visit.answer("", status=301, Location=location)
    failed = scraper.failure(site.url("/a"))
    assert failed.reason == "redirects"
    assert value in failed.detail


def test_tls_verifies_the_name(scraper: Scraper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate("site.example")
    path = tmp_path / "certificate.pem"
    path.write_bytes(certificate)
    names: list[str | None] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    tls.sni_callback = lambda _, name, __: names.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with running_site(tls) as site:
        site.paths["/a"] = good
        right, wrong = (site.url("/a", host, "https") for host in ("site.example", "other.example"))
        report = scraper(right, wrong)
    assert [each["url"] for each in scraper.documents] == [right]
    assert [(each.url, each.reason, each.may_pass) for each in report.failed] == [(wrong, "certificate", False)]
    assert set(names) == {"site.example", "other.example"}


def test_proxies_of_the_environment_are_ignored(site: Site, scraper: Scraper, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    site.paths["/a"] = good
    assert scraper(site.url("/a")).written == 1


# Faulty servers ------------------------------------------------------------------------------------------------------


def test_circular_redirects_end(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = lambda visit: visit.answer("", status=302, Location="/b")
    site.paths["/b"] = lambda visit: visit.answer("", status=302, Location="/a")
    failed = scraper.failure(site.url("/a"))
    assert failed.reason == "redirects"
    assert site.count_requests("/a") + site.count_requests("/b") == 6


def test_a_moved_page_keeps_its_own_url(site: Site, scraper: Scraper) -> None:
    site.paths["/old"] = lambda visit: visit.answer("", status=301, Location="new")
    site.paths["/new"] = good
    scraper(site.url("/old"))
    assert scraper.documents[0]["url"] == site.url("/old")
    assert scraper.documents[0]["metadata"]["moved_to"] == site.url("/new")


def test_an_unescaped_redirect_is_followed(site: Site, scraper: Scraper) -> None:
    site.paths["/old"] = lambda visit: visit.answer("", status=301, Location="/sjögren".encode().decode("latin-1"))
    site.paths["/sj%C3%B6gren"] = good
    assert scraper(site.url("/old")).written == 1


def endless(visit: Visit) -> None:
    visit.begin()
    while True:
        visit.wfile.write(b"<p>And on it goes.</p>" * 1000)


MINUTES = [60.0] * 59 + [120.0]
"""Only the last one ends an hour: when the client has left, its clock must not move any more."""


def trickling(visit: Visit) -> None:
    """Send one byte per minute for an hour, and another one when the time of the page is over."""
    visit.begin()
    for seconds in MINUTES:
        visit.site.pass_time(seconds)
        visit.wfile.write(b"x")
    visit.wait_for_client_to_leave()


def trickling_head(visit: Visit) -> None:
    visit.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number, seconds in enumerate(MINUTES):
        visit.site.pass_time(seconds)
        visit.wfile.write(f"X-{number}: y\r\n".encode())
    visit.wait_for_client_to_leave()


def silent(visit: Visit) -> None:
    visit.site.pass_time(2 * HOUR)
    visit.wait_for_client_to_leave()


@cache
def packed_bomb() -> bytes:
    return gzip.compress(b"<p>" + b"\0" * 20_000_000)


def bomb(visit: Visit) -> None:
    visit.answer(packed_bomb(), Content_Encoding="gzip")


def bomb_in_a_bomb(visit: Visit) -> None:
    visit.answer(gzip.compress(packed_bomb()), Content_Encoding="gzip, gzip")


def huge_head(visit: Visit) -> None:
    visit.begin(**{f"X-{number}": "y" * 1000 for number in range(300)})


def no_http(visit: Visit) -> None:
    visit.wfile.write(b"220 mail.example ESMTP\r\n\r\n")
    visit.close_connection = True


def short(visit: Visit) -> None:
    visit.send_response(200)
    visit.send_header("Content-Type", "text/html")
    visit.send_header("Content-Length", "10000")
    visit.end_headers()
    visit.wfile.write(b"<p>Only so much")
    visit.close_connection = True


def reset(visit: Visit) -> None:
    visit.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    visit.connection.close()
    visit.close_connection = True


def said_too_large(visit: Visit) -> None:
    visit.send_response(200)
    visit.send_header("Content-Length", str(10**12))
    visit.end_headers()


def cut_gzip(visit: Visit) -> None:
    visit.answer(gzip.compress(random.Random(1).randbytes(5000))[:2000], Content_Encoding="gzip")


EMPTY = gzip.compress(b"")


def endless_padding(visit: Visit) -> None:
    visit.begin(Content_Encoding="gzip")
    visit.wfile.write(gzip.compress(page().encode()))
    while True:
        visit.wfile.write(b"\0" * 10_000)


BAD: dict[str, tuple[Callable[[Visit], None], str, bool]] = {
    "endless": (endless, "too large", False),
    "said-too-large": (said_too_large, "too large", False),
    "bomb": (bomb, "too large", False),
    "bomb-in-a-bomb": (bomb_in_a_bomb, "broken answer", False),
    "huge-head": (huge_head, "broken answer", False),
    "no-http": (no_http, "broken answer", False),
    "no-gzip": (lambda visit: visit.answer(b"not gzip", Content_Encoding="gzip"), "broken answer", False),
    "trickling": (trickling, "timeout", True),
    "trickling-head": (trickling_head, "timeout", True),
    "silent": (silent, "timeout", True),
    "reset": (reset, "connection", True),
    "short": (short, "connection", True),
    "cut-gzip": (cut_gzip, "connection", True),
    "500": (lambda visit: visit.answer("", status=500), "status", True),
    "raw-deflate": (
        lambda visit: visit.answer(zlib.compress(page().encode(), wbits=-15), Content_Encoding="deflate"),
        "broken answer",
        False,
    ),
    "endless-padding": (endless_padding, "too large", False),
    "many-members": (lambda visit: visit.answer(EMPTY * 20_000, Content_Encoding="gzip"), "too large", False),
    "cut-member": (
        lambda visit: visit.answer(gzip.compress(page().encode()) + gzip.compress(b"x")[:12], Content_Encoding="gzip"),
        "connection",
        True,
    ),
    "odd-date": (
        lambda visit: visit.answer("", status=503, Retry_After="Mon, 01 Jan 2024 00:00:00 +99999999999999"),
        "status",
        True,
    ),
    "429": (lambda visit: visit.answer("", status=429), "status", True),
    "403": (lambda visit: visit.answer("", status=403), "status", False),
    "304": (lambda visit: visit.answer("", status=304), "status", False),
    "404": (lambda visit: visit.answer(page(), status=404), "not found", False),
    "410": (lambda visit: visit.answer(page(), status=410), "not found", False),
    "image": (lambda visit: visit.answer(b"\x89PNG", kind="image/png"), "content type", False),
    "no-type": (lambda visit: visit.answer(b"\0\1\2", kind=""), "content type", False),
    "cut-pdf": (lambda visit: visit.answer(b"%PDF-1.7 and no more", kind="application/pdf"), "unreadable", False),
    "script": (lambda visit: visit.answer("<script>draw()</script>"), "no text", False),
    "empty": (lambda visit: visit.answer(b""), "no text", False),
}


@pytest.fixture(scope="module")
def bad_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, FailedPage], set[str]]:
    """Scrape a bad page and then a good one of each of many hosts: return the failures, and the hosts with a page.

    Those that never end are scraped one after another, on a clock that they move.
    """
    scraper = Scraper(tmp_path_factory.mktemp("bad"))
    clock = Clock()
    with running_site() as site, pytest.MonkeyPatch.context() as patched:
        site.paths["/good"] = good
        site.pass_time = clock.advance
        for name, (behave, _, _) in BAD.items():
            site.paths[f"/{name}"] = behave
        urls = {name: [site.url(path, f"{name}.example") for path in (f"/{name}", "/good")] for name in BAD}
        endless = [urls.pop(name) for name, (_, reason, _) in BAD.items() if reason == "timeout"]
        report = scraper(*itertools.chain(*urls.values()), attempts=1, probe=False)
        patched.setattr(time, "monotonic", clock.now)
        for each in endless:
            report.failed += scraper(*each, attempts=1, probe=False).failed
    failed = {str(normalize_url(each.url).host).removesuffix(".example"): each for each in report.failed}
    return failed, {each["metadata"]["site"].removesuffix(".example") for each in scraper.documents}


@pytest.mark.parametrize("name", BAD)
def test_each_fault_is_reported_and_the_next_page_scraped(
    bad_run: tuple[dict[str, FailedPage], set[str]], name: str
) -> None:
    failed, written = bad_run
    assert (failed[name].reason, failed[name].may_pass) == BAD[name][1:]
    assert name in written


def test_slow_extraction_is_killed(site: Site, scraper: Scraper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a bad page that would take hours a short limit, and the good page as much time as it needs."""
    begin = BoundedProcesses._submit

    def submit_with_short_limit(self: BoundedProcesses, function: Any, body: bytes, *given: Any) -> Any:
        self._seconds = 0.5 if len(body) > 1_000_000 else HOUR
        return begin(self, function, body, *given)

    monkeypatch.setattr(BoundedProcesses, "_submit", submit_with_short_limit)
    site.paths["/bad"], site.paths["/good"] = lambda visit: visit.answer("<p>a<b>" * 250_000), good
    report = scraper(site.url("/bad"), site.url("/good"), page_bytes=5_000_000)
    assert [(each.reason, each.may_pass) for each in report.failed] == [("unreadable", False)]
    assert report.written == 1


@pytest.mark.parametrize(
    "kind",
    [
        "text/html; charset*=utf-8''a; charset*0=b",
        f"text/html; charset*{'1' * 5000}=a",
        'text/html; charset="',
        "TEXT/HTML;",
    ],
)
def test_an_odd_content_type_is_reported(site: Site, scraper: Scraper, kind: str) -> None:
    site.paths["/a"] = lambda visit: visit.answer(page(), kind=kind)
    assert scraper(site.url("/a"), probe=False).written == 1


def test_an_unexpected_error_is_a_failure_of_its_page(site: Site, scraper: Scraper) -> None:
    async def odd(host: str, _: int) -> list[str]:
        if host == "odd.example":
            raise LookupError("of the test")
        return ["127.0.0.1"]

    site.paths["/a"] = good
    report = scraper(site.url("/a", "odd.example"), site.url("/a"), resolve=odd)
    assert [(each.reason, each.detail) for each in report.failed] == [("broken answer", "LookupError: of the test")]
    assert report.written == 1


def test_a_page_in_several_gzip_members_is_complete(site: Site, scraper: Scraper) -> None:
    html = page("Fenwick disease", "It itches.", "It passes after a week.").encode()
    members = gzip.compress(html[:-200]) + gzip.compress(html[-200:])
    behind = [b"", b"\0" * 2000, b"no gzip"]

    def answer(visit: Visit) -> None:
        visit.answer(members + behind[int(visit.path[1:])], Content_Encoding="gzip")

    site.paths |= {f"/{number}": answer for number in range(len(behind))}
    assert scraper(*(site.url(f"/{number}") for number in range(3)), probe=False).written == 3
    assert all("passes after a week" in document["text"] for document in scraper.documents)
    assert all(request.headers["Accept-Encoding"] == "gzip" for request in site.requests)


DRY = "Sjögren\u2019s syndrome \u201cdries\u201d the eyes for years."


def test_a_wrong_charset_is_corrected(site: Site, scraper: Scraper) -> None:
    cases = [
        ("text/html; charset=iso-8859-1", "utf-8", "", DRY),
        ("text/html; charset=utf-8", "cp1252", "", DRY),
        ("text/html; charset=utf-8", "cp1251", "windows-1251", "Болезнь Шегрена сушит глаза годами."),
        ("text/html; charset=iso-8859-1", "cp1251", "windows-1251", "Болезнь Шегрена сушит глаза годами."),
        ("text/html", "shift_jis", "shift_jis", "シェーグレン症候群は目を乾燥させます。"),
        ("text/html; charset=no-such", "utf-8", "", DRY),
        ("text/html", "utf-16", "", DRY),
    ]

    def answer(visit: Visit) -> None:
        said, charset, inside, text = cases[int(visit.path[1:])]
        meta = f'<meta charset="{inside}">' if inside else ""
        html = f"<html><head>{meta}<title>{text}</title></head><body><p>{text}</p></body></html>"
        visit.answer(html.encode(charset), kind=said)

    site.paths |= {f"/{number}": answer for number in range(len(cases))}
    scraper(*(site.url(f"/{number}") for number in range(len(cases))), probe=False)
    for (*_, text), document in zip(cases, scraper.documents, strict=True):
        assert text in document["text"]
        assert document["title"] == text


def test_text_and_pdf_are_scraped(site: Site, scraper: Scraper) -> None:
    site.paths["/a.txt"] = lambda visit: visit.answer("Itches for a week.", kind="text/plain")
    site.paths["/a.pdf"] = lambda visit: visit.answer(pdf("Elbow disease in a PDF"), kind="application/pdf")
    scraper(site.url("/a.txt"), site.url("/a.pdf"))
    assert [each["text"] for each in scraper.documents] == ["Itches for a week.", "Elbow disease in a PDF"]


@pytest.mark.ci
def test_a_pdf_is_read_whatever_its_server_calls_it(site: Site, scraper: Scraper) -> None:
    data = placed_pdf([[(72, 700, "Elbow disease in a PDF")], SCAN])
    kinds = ["application/octet-stream", "text/html", "text/plain", ""]
    site.paths |= {
        f"/{number}": lambda visit: visit.answer(data, kind=kinds[int(visit.path[1:])]) for number in range(4)
    }
    scraper(*(site.url(f"/{number}") for number in range(4)), probe=False)
    assert [each["text"] for each in scraper.documents] == ["Elbow disease in a PDF"] * 4
    assert [each["metadata"]["unread_pages"] for each in scraper.documents] == [["2"]] * 4


def test_markdown_is_scraped(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = lambda visit: visit.answer("---\ntitle: Elbow\n---\nIt itches.", kind="text/markdown")
    site.paths["/b.md"] = lambda visit: visit.answer("# Knee\n\nIt aches.", kind="text/plain; charset=utf-8")
    scraper(site.url("/a"), site.url("/b.md"), probe=False)
    assert [(each["title"], each["text"]) for each in scraper.documents] == [
        ("Elbow", "It itches."),
        ("Knee", "# Knee\n\nIt aches."),
    ]


@pytest.mark.ci
def test_pages_without_content_are_no_documents(site: Site, scraper: Scraper) -> None:
    pages = {
        "/js": "<title>App</title><noscript>You need to enable JavaScript.</noscript><div id=root></div>",
        "/js2": "<title>App</title><body><p>You need to enable JavaScript to run this app.</p></body>",
        "/consent": "<title>Pumps</title><h1>Pumps</h1><p>We use cookies and similar technologies to give you the best "
        "experience. Please accept all cookies to continue.</p>",
        "/scan": "",
    }
    site.paths |= {path: lambda visit: visit.answer(pages[visit.path]) for path in pages}
    site.paths["/scan"] = lambda visit: visit.answer(placed_pdf([SCAN]), kind="application/pdf")
    report = scraper(*map(site.url, pages), probe=False)
    assert [each.reason for each in report.failed] == [
        "needs JavaScript",
        "needs JavaScript",
        "asks for consent",
        "scan",
    ]
    assert not any(each.may_pass for each in report.failed)


def refresh(to: str, *, in_header: bool = False) -> Callable[[Visit], None]:
    def behave(visit: Visit) -> None:
        if in_header:
            visit.answer("", Refresh=f"0; url={to}")
        else:
            visit.answer(f'<meta http-equiv="refresh" content="0; url={to}"><p>This page has moved.</p>')

    return behave


@pytest.mark.parametrize("in_header", [False, True])
def test_a_refresh_is_followed_like_a_redirect(site: Site, scraper: Scraper, in_header: bool) -> None:
    site.paths["/old"], site.paths["/new"] = refresh("/new", in_header=in_header), good
    assert scraper(site.url("/old"), probe=False).written == 1
    (document,) = scraper.documents
    assert (document["url"], document["metadata"]["moved_to"]) == (site.url("/old"), site.url("/new"))
    assert "Disease of /new" in document["text"]


@pytest.mark.parametrize("in_header", [False, True])
@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("/circle", "redirects"),
        ("/secret", "robots.txt"),
        ("http://169.254.169.254/", "private address"),
        ("file:///etc/passwd", "redirects"),
        ("javascript:alert(1)", "redirects"),
        ("/missing", "not found"),
    ],
)
def test_a_refresh_has_the_limits_of_a_redirect(
    site: Site, scraper: Scraper, to: str, reason: str, in_header: bool
) -> None:
    site.paths["/robots.txt"] = lambda visit: visit.answer("User-agent: *\nDisallow: /secret", kind="text/plain")
    site.paths["/secret"] = good
    site.paths["/a"], site.paths["/circle"] = refresh(to, in_header=in_header), refresh("/a", in_header=in_header)

    async def resolve(host: str, _: int) -> list[str]:
        return ["127.0.0.1" if host == "site.example" else host]

    assert scraper.failure(site.url("/a"), probe=False, resolve=resolve).reason == reason
    assert site.count_requests("/secret") == 0


def test_an_error_page_with_status_200_is_detected(site: Site, scraper: Scraper) -> None:
    said = [
        ("Page not found", "Try the search."),
        ("404", "Go home."),
        ("Not found", "Try the search."),
        ("Sorry, the page you want does not exist", "Try the search."),
        ("Invented Health", "Sorry, the page that you asked for could not be found. Try the search."),
        ("Invented Health", "This article is no longer available."),
    ]
    site.paths |= {
        f"/{number}": lambda visit: visit.answer(page(*said[int(visit.path[1:])])) for number in range(len(said))
    }
    report = scraper(*(site.url(f"/{number}") for number in range(len(said))), probe=False)
    assert [(each.reason, each.may_pass) for each in report.failed] == [("not found", False)] * len(said)


def test_a_page_about_missing_things_is_a_page(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = lambda visit: visit.answer(
        page("Fenwick disease", "The page where its cause stands was long not found. " + "It itches. " * 100)
    )
    assert scraper(site.url("/a")).written == 1


@pytest.mark.parametrize(
    "title", ["When your spleen has been removed", "If the cause cannot be found", "Cancer that was not found early"]
)
def test_a_title_about_missing_things_is_a_page(site: Site, scraper: Scraper, title: str) -> None:
    site.paths["/a"] = lambda visit: visit.answer(page(title))
    assert scraper(site.url("/a")).written == 1


def test_a_failed_probe_is_repeated(site: Site, scraper: Scraper) -> None:
    site.paths["/robots.txt"] = lambda visit: visit.answer("", kind="text/plain")
    site.paths["/gone"] = lambda visit: visit.answer(page("Gesundheit", "Hier ist leider nichts."))
    site.paths["/a"] = site.paths["/b"] = good
    probed: list[str] = []

    def probe(visit: Visit) -> None:
        probed.append(visit.path)
        visit.answer(page("Gesundheit", "Hier ist leider nichts."), status=503 if len(probed) == 1 else 200)

    site.otherwise = probe
    report = scraper(site.url("/a"), site.url("/gone"), site.url("/b"), attempts=1)
    assert [(each.url, each.reason, each.may_pass) for each in report.failed] == [
        (site.url("/a"), "status", True),
        (site.url("/gone"), "not found", False),
    ]
    assert "--no-probe" in report.failed[0].detail
    assert (report.written, len(probed)) == (1, 2)
    assert scraper(site.url("/a")).written == 1


def test_a_host_s_error_template_is_detected(site: Site, scraper: Scraper) -> None:
    site.otherwise = lambda visit: visit.answer(page("Gesundheit", "Hier ist leider nichts, was man lesen könnte."))
    site.paths["/robots.txt"] = lambda visit: visit.answer("", kind="text/plain")
    site.paths["/a"] = good
    report = scraper(site.url("/a"), site.url("/gone"))
    assert [(each.url, each.reason) for each in report.failed] == [(site.url("/gone"), "not found")]
    assert [each["url"] for each in scraper.documents] == [site.url("/a")]
    assert len(site.requests) == 4  # one of them for a nonexistent page


def test_a_redirect_to_the_front_page_is_a_missing_page(site: Site, scraper: Scraper) -> None:
    site.paths["/"] = good
    site.paths["/old/page"] = lambda visit: visit.answer("", status=302, Location="/")
    assert scraper.failure(site.url("/old/page")).reason == "not found"
    site.paths["/moved"] = lambda visit: visit.answer("", status=302, Location=site.url("/", "www.site.example"))
    assert scraper(site.url("/moved"), probe=False).reasons == {"not found": 1}
    site.paths["/index.html"] = lambda visit: visit.answer("", status=301, Location="/")
    assert scraper(site.url("/"), site.url("/index.html")).written == 2


# Temporary failures --------------------------------------------------------------------------------------------------


def failing_once(answer: Callable[[Visit], None]) -> Callable[[Visit], None]:
    asked: list[str] = []

    def behave(visit: Visit) -> None:
        asked.append(visit.path)
        (answer if len(asked) == 1 else good)(visit)

    return behave


@pytest.mark.parametrize("failure", [lambda visit: visit.answer("", status=500), reset, short])
def test_temporary_failures_are_retried(site: Site, scraper: Scraper, failure: Callable[[Visit], None]) -> None:
    site.paths["/a"] = failing_once(failure)
    report = scraper(site.url("/a"))
    assert (report.written, report.failed) == (1, [])
    assert site.count_requests("/a") == 2


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_kept(site: Site, scraper: Scraper, form: str) -> None:
    def busy(visit: Visit) -> None:
        later = datetime.now(UTC) + timedelta(seconds=30)
        visit.answer("", status=429, Retry_After="30" if form == "seconds" else format_datetime(later, usegmt=True))

    site.paths["/a"] = failing_once(busy)
    assert scraper(site.url("/a"), probe=False).written == 1
    first, second = [request.at for request in site.requests if request.path == "/a"]
    assert second - first >= 28.9  # a date has whole seconds


@pytest.mark.usefixtures("pauses")
def test_retry_after_also_delays_the_next_page(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = lambda visit: visit.answer("", status=429, Retry_After="30")
    site.paths["/b"] = good
    assert scraper(site.url("/a"), site.url("/b"), attempts=1, probe=False).written == 1
    times = {request.path: request.at for request in site.requests}
    assert times["/b"] - times["/a"] >= 29.9


def test_a_host_with_a_long_retry_after_is_skipped(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = lambda visit: visit.answer("", status=503, Retry_After="86400")
    site.paths["/b"] = good
    report = scraper(site.url("/a"), site.url("/b"))
    assert [(each.reason, each.may_pass) for each in report.failed] == [("status", True), ("host set aside", True)]
    assert (site.count_requests("/a"), site.count_requests("/b")) == (1, 0)


def test_a_host_that_keeps_failing_is_skipped(site: Site, scraper: Scraper) -> None:
    site.paths["/robots.txt"] = lambda visit: visit.answer("", kind="text/plain")
    site.otherwise = lambda visit: visit.answer("", status=500)
    site.paths["/fine"] = good
    urls = [site.url(f"/{number}") for number in range(8)]
    report = scraper(*urls, site.url("/fine", "other.example"), attempts=1, probe=False)
    assert report.reasons == {"status": 5, "host set aside": 3}
    assert report.may_pass == 8
    assert report.written == 1
    assert len(site.requests) == 8


def test_an_unknown_name_is_permanent_and_a_failing_resolver_temporary(site: Site, scraper: Scraper) -> None:
    async def lost(host: str, _: int) -> list[str]:
        if "here" not in host:
            raise socket.gaierror(socket.EAI_NONAME if "gone" in host else socket.EAI_AGAIN, "of the test")
        return ["127.0.0.1"]

    site.paths["/a"] = good
    gone, later, here = (site.url("/a", f"{name}.example") for name in ("gone", "later", "here"))
    assert scraper.failure(gone, resolve=lost).may_pass  # no name can be resolved: there may be no network
    assert scraper(here, resolve=lost).written == 1
    report = scraper(gone, later, resolve=lost)
    assert {each.url: (each.reason, each.may_pass) for each in report.failed} == {
        gone: ("no such host", False),
        later: ("no such host", True),
    }


# Repeated runs -------------------------------------------------------------------------------------------------------


def test_a_second_run_requests_only_missing_pages(site: Site, scraper: Scraper) -> None:
    site.paths["/a"] = site.paths["/b"] = good
    site.paths["/gone"] = lambda visit: visit.answer("", status=410)
    site.paths["/busy"] = failing_once(lambda visit: visit.answer("", status=503))
    urls = [site.url(path) for path in ("/a", "/gone", "/busy")]
    first = scraper(*urls, attempts=1)
    assert (first.written, first.reasons) == (1, {"not found": 1, "status": 1})
    before = len(site.requests)
    second = scraper(*urls, site.url("/b"), attempts=1, probe=False)
    assert (second.wanted, second.already_there, second.written, second.reasons) == (4, 1, 2, {"not found": 1})
    assert [request.path for request in site.requests[before:]] == ["/robots.txt", "/busy", "/b"]
    listed = scraper.path.with_name("pages.failed.jsonl").read_text().splitlines()
    assert [json.loads(line)["url"] for line in listed] == [site.url("/gone")]

    site.paths["/gone"] = good
    scraper.settings = replace(scraper.settings, retry_failed=True)
    third = scraper(*urls)
    assert (third.written, third.failed) == (1, [])
    assert not scraper.path.with_name("pages.failed.jsonl").read_text()


def test_unchanged_pages_come_from_the_cache(site: Site, scraper: Scraper, tmp_path: Path) -> None:
    def tagged(visit: Visit) -> None:
        if visit.headers["If-None-Match"] == '"one\xf6"':
            visit.answer("", status=304)
        else:
            visit.answer(page("Tagged"), ETag='"one\xf6"')

    def dated(visit: Visit) -> None:
        if visit.headers["If-Modified-Since"]:
            visit.answer("", status=304)
        else:
            visit.answer(page("Dated"), Last_Modified="Mon, 02 Jan 2023 03:04:05 GMT")

    site.paths |= {"/tagged": tagged, "/dated": dated, "/plain": good}
    site.paths["/secret"] = lambda visit: visit.answer(page("Secret"), ETag='"two"', Cache_Control="no-store")
    urls = [site.url(path) for path in ("/tagged", "/dated", "/plain", "/secret")]
    scraper.settings = replace(scraper.settings, cache=tmp_path / "cache")
    assert scraper(*urls).unchanged == 0
    kept = [{**each, "fetched": ""} for each in scraper.documents]
    scraper.path = tmp_path / "again.jsonl"
    report = scraper(*urls)
    assert (report.written, report.unchanged) == (4, 2)
    assert [{**each, "fetched": ""} for each in scraper.documents] == kept
    assert len(list((tmp_path / "cache").rglob("*.page"))) == 2

    for damaged in (tmp_path / "cache").rglob("*.page"):
        damaged.write_bytes(damaged.read_bytes()[:-5])
    scraper.path = tmp_path / "third.jsonl"
    assert (scraper(*urls).unchanged, len(scraper.documents)) == (0, 4)


def test_the_cache_has_a_maximum_size(site: Site, scraper: Scraper, tmp_path: Path) -> None:
    drawn = random.Random(1)
    for number in range(5):
        site.paths[f"/{number}"] = lambda visit: visit.answer(drawn.randbytes(3000).hex(), kind="text/plain", ETag="e")
    scraper.settings = replace(scraper.settings, cache=tmp_path / "cache", cache_bytes=9000)
    assert scraper(*(site.url(f"/{number}") for number in range(5)), probe=False).written == 5
    assert 0 < sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.page")) <= 9000


@pytest.mark.ci
def test_a_killed_run_is_resumed(site: Site, run: Callable[..., CommandResult], tmp_path: Path) -> None:
    killed = threading.Event()

    def held(visit: Visit) -> None:
        killed.wait()
        good(visit)

    for number in range(30):
        site.paths[f"/{number}"] = good if number < 10 else held
    addresses = tmp_path / "addresses.txt"
    addresses.write_text("\n".join(f"http://127.0.0.1:{site.port}/{number}" for number in range(30)))
    path = tmp_path / "pages.jsonl"
    command = [
        "documents", "scrape", str(addresses), "--out", str(path), "--allow", "127.0.0.0/8", "--delay", "0",
        "--no-probe",
    ]  # fmt: skip
    process = [sys.executable, "-m", "gumshoe", *command]
    with subprocess.Popen(process, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        wait_until(lambda: len(site.requests) == 12, running)  # robots.txt, ten pages, and one that hangs
        running.send_signal(signal.SIGKILL)
    killed.set()
    had = path.read_bytes().count(b"\n")
    assert had == 10
    with path.open("ab") as file:
        file.write(b'{"id": "cut')  # as after a power failure
    before = len(site.requests)
    report = json.loads(run(*command, "--json").out)
    assert (report["already_there"], report["written"]) == (had, 30 - had)
    assert len(site.requests) - before == 31 - had
    urls = [json.loads(line)["url"] for line in path.read_text().splitlines()]
    assert len(urls) == len(set(urls)) == 30


def test_only_one_run_may_write_a_file(site: Site, scraper: Scraper) -> None:
    def another(visit: Visit) -> None:
        with raises("store.file-in-use", scraper.path):
            scraper(site.url("/b"))
        good(visit)

    site.paths["/a"] = another
    assert scraper(site.url("/a")).written == 1


OURS = '{"id": "a", "title": "", "text": "x", "url": "http://site.example/x"}\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"question": "What?"}\n', 1),
        ('{"question": "What?"}', 1),
        ("A letter without a line's end", 1),
        (f'{OURS}{{"question": "What?"}}', 2),
    ],
)
def test_a_foreign_output_file_is_rejected(site: Site, scraper: Scraper, text: str, line: int) -> None:
    scraper.path.write_text(text)
    with raises("scraping.foreign-output", f"{scraper.path}:{line}"):
        scraper(site.url("/a"))
    assert scraper.path.read_text() == text
    assert not site.requests


# Wanted pages --------------------------------------------------------------------------------------------------------


def test_records_give_urls_ids_and_metadata(tmp_path: Path) -> None:
    records = [
        {"document_url": "HTTP://Site.Example:80/a/../b?x=1#one", "doc": 7, "source": "NIH", "names": ["Elbow", "Arm"]},
        {"document_url": "http://site.example/b?x=1", "doc": 8, "source": "CDC", "names": ["Arm"]},
        {"document_url": None, "doc": 9},
        {"document_url": "ftp://site.example/c", "doc": 10},
    ]
    path = tmp_path / "records.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    first, second = list_wanted_pages(f"jsonl:{path}", RecordFields(document_id="doc", keep=("source", "names")))
    assert (first.url, first.document_id) == ("http://site.example/b?x=1", "7")
    assert first.metadata == {"source": ["NIH", "CDC"], "names": ["Elbow", "Arm"]}
    assert second.fault is not None
    assert second.fault.reason == "address"


def test_pages_whose_ids_collide_get_different_ones(tmp_path: Path) -> None:
    first, second = (f"https://a.example/list?page={number}" for number in (51595, 79736))
    assert page_id(first) == page_id(second) == "list-64d154e2"
    path = tmp_path / "list.txt"
    path.write_text(f"{first}\n{second}\nftp://a.example/x\nftp://A.example/x\n")
    ids = [each.document_id for each in list_wanted_pages(str(path), RecordFields())]
    assert ids == ["list-64d154e2", "list-64d154e2d0cd9345", page_id("ftp://a.example/x"), ids[3]]
    assert len(set(ids)) == 4
    assert [each.document_id for each in list_wanted_pages(str(path), RecordFields())] == ids
    records = [{"url": first}, {"url": "http://a.example/other", "doc": "list-64d154e2"}]
    path.write_text("\n".join(map(json.dumps, records)))
    ids = [each.document_id for each in list_wanted_pages(f"jsonl:{path}", RecordFields(document_id="doc"))]
    assert ids == ["list-" + sha256(first.encode()).hexdigest()[:16], "list-64d154e2"]


def test_invalid_sources_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"url": "http://a.example/1", "doc": 1}\n{"url": "http://a.example/2", "doc": 1}\n')
    with raises("scraping.duplicate-id", "http://a.example/1", "http://a.example/2", "'1'"):
        list_wanted_pages(f"jsonl:{path}", RecordFields(document_id="doc"))
    with raises("scraping.missing-field", path, "'address'", "--field", "url, doc"):
        list_wanted_pages(f"jsonl:{path}", RecordFields(address="address"))
    with raises("scraping.missing-field", path, "'docs'", "--id-field", "url, doc"):
        list_wanted_pages(f"jsonl:{path}", RecordFields(document_id="docs"))
    with raises("scraping.missing-field", path, "'topic'", "--keep", "url, doc"):
        list_wanted_pages(f"jsonl:{path}", RecordFields(keep=("doc", "topic")))
    with raises("scraping.no-fields", f"jsonl:{path}"):
        list_wanted_pages(str(path), RecordFields(address="url"))
    path.write_text("{nothing\n")
    with raises("scraping.malformed-record", f"{path}:1"):
        list_wanted_pages(f"jsonl:{path}", RecordFields())
    path.write_text("# none\n\n")
    with raises("scraping.no-addresses", path):
        list_wanted_pages(str(path), RecordFields())


@pytest.mark.parametrize(
    "text",
    ["www.example.com/a", "ftp://a.example/", "http://", "http://u:p@a.example/", "http://a.example:25/",
     "javascript:alert(1)", "http://a.example/" + "x" * 3000, "http://a\0.example/"],
)  # fmt: skip
def test_an_invalid_url_is_reported(text: str) -> None:
    with pytest.raises(PageFailure) as failure:
        normalize_url(text)
    assert failure.value.reason == "address"


def test_a_url_has_one_canonical_form() -> None:
    forms = ["http://EXAMPLE.com", "http://example.com:80/", "http://example.com/./#top", " http://example.com/ "]
    assert {str(normalize_url(form)) for form in forms} == {"http://example.com/"}


def test_each_page_of_medquad_is_wanted_once(shared_data: Path) -> None:
    source = f"jsonl:{shared_data / 'medquad' / 'medquad.jsonl.gz'}"
    wanted = list_wanted_pages(source, RecordFields(keep=("source", "focus")))
    assert len(wanted) == 722  # of 725 URLs, three are fragments of another page
    assert all(isinstance(each, WantedPage) and each.fault is None for each in wanted)
    assert all(each.metadata["source"] for each in wanted)
    with raises("scraping.duplicate-id", "'0000001'"):  # its parts use the same document numbers
        list_wanted_pages(source, RecordFields(document_id="doc_id"))


# The command line ----------------------------------------------------------------------------------------------------


def test_the_command_reports_failures_and_exits_with_75(
    site: Site, run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    site.paths["/a"] = good
    site.paths["/gone"] = lambda visit: visit.answer("", status=404)
    site.paths["/busy"] = failing_once(lambda visit: visit.answer("", status=503))
    addresses, path = tmp_path / "addresses.txt", tmp_path / "pages.jsonl"
    addresses.write_text("\n".join(f"http://127.0.0.1:{site.port}{each}" for each in ("/a", "/gone", "/busy")))
    command = ["documents", "scrape", addresses, "--out", path, "--delay", 0, "--tries", 1, "--cache", tmp_path / "c"]

    refused = run(*command)
    assert refused.status == 0
    assert "3 of 3" in refused.out
    assert "3 private address" in refused.out

    allowed = [*command, "--allow", "127.0.0.1", "--retry-failed"]
    first = run(*allowed)
    assert (first.status, first.code) == (75, "scraping.pages-failed")
    assert "1 pages" in first.out
    (gone,) = [line for line in first.out.splitlines() if "/gone" in line]
    assert "404" in gone
    assert "(temporary)" not in gone
    (busy,) = [line for line in first.out.splitlines() if "/busy" in line]
    assert busy.endswith("(temporary)")
    assert "1 pages" in first.err

    second = run(*allowed[:-1], "--json")
    assert second.status == 0
    report = json.loads(second.out)
    assert (report["written"], report["already_there"], report["reasons"]) == (1, 1, {"not found": 1})

    agent = run(*command, "--user-agent", "bad\nagent")
    assert (agent.status, agent.code) == (2, "scraping.invalid-user-agent")
    ending = run(*command[:4], tmp_path / "pages.txt")
    assert (ending.status, ending.code) == (2, "scraping.output-not-jsonl")
    assert str(path) in ending.err
