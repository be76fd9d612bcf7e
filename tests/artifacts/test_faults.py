"""A store behind a network and a server with faults."""

import itertools
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import psutil
import pytest

from gumshoe.artifacts.storage import open_uri
from gumshoe.artifacts.store import Store
from gumshoe.signals import exit_on_signals
from tests.artifacts.conftest import LIMITS
from tests.artifacts.fault_proxy import (
    Elapsed,
    Exchange,
    FaultProxy,
    answer,
    corrupt,
    cut_answer,
    edit,
    lose_answer,
    meanwhile,
    never_answer,
    reset_after,
    stall,
    stall_after,
    strip,
    trickle,
)
from tests.artifacts.files import gumshoe, noise, overwrite, read_files, write_files
from tests.conftest import find_free_port
from tests.errors import raises
from tests.waiting import Clock, wait_until

MIB = 1 << 20
PIECE = MIB // 4
BIG = noise(3 * PIECE)
SLOW_DOWN = answer(503, "SlowDown", "Please reduce your request rate.")
UNAVAILABLE = answer(503, "ServiceUnavailable")
DENIED = answer(403, "AccessDenied", "Access Denied")
FEW_ATTEMPTS = replace(LIMITS, attempts=2)
ATTEMPT_SECONDS = LIMITS.read_timeout + 20
"""Maximum duration of one attempt in seconds: its read timeout plus boto3's longest pause after it."""
HOUR = 3600.0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a directory with a large and a small file."""
    return write_files(tmp_path / "source", {"weights.bin": BIG, "config.json": b"{}"})


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "fetched" / "out"


def _check_fetch(store: Store, out: Path, source: Path) -> None:
    store.fetch("adapters/1", out)
    assert read_files(out) == read_files(source)


# Publishing

TEMPORARY_FAULTS = [
    pytest.param(reset_after(PIECE), "PUT", "weights.bin", id="connection reset in the middle of an upload"),
    pytest.param(SLOW_DOWN, "PUT", "weights.bin", id="503 to an upload"),
    pytest.param(answer(500, "InternalError"), "PUT", "weights.bin", id="500 to an upload"),
    pytest.param(lose_answer, "PUT", "weights.bin", id="answer to an upload lost"),
    pytest.param(stall, "PUT", "config.json", id="no answer to an upload"),
    pytest.param(UNAVAILABLE, "PUT", "manifest.json", id="503 to the last write"),
    pytest.param(answer(409, "ConditionalRequestConflict"), "PUT", "manifest.json", id="409 to the last write"),
    pytest.param(reset_after(10), "PUT", "manifest.json", id="connection reset in the last write"),
    pytest.param(lose_answer, "PUT", "manifest.json", id="answer to the last write lost"),
    pytest.param(stall, "PUT", "manifest.json", id="no answer to the last write"),
    pytest.param(answer(409, "ConditionalRequestConflict"), "PUT", "latest.json", id="409 to the note of the latest"),
    pytest.param(lose_answer, "PUT", "latest.json", id="answer to the note of the latest lost"),
    pytest.param(lose_answer, "PUT", ".conditional-writes", id="answer to the marker lost"),
    pytest.param(cut_answer(20), "GET", "adapters/1/manifest.json", id="answer that the version is free cut"),
    pytest.param(cut_answer(20, reset=False), "GET", "adapters/1/manifest.json", id="the same, ended early"),
]


@pytest.mark.parametrize(("fault", "method", "key"), TEMPORARY_FAULTS)
def test_a_publication_survives_a_temporary_fault(
    proxied: Store,
    proxy: FaultProxy,
    elapsed: Elapsed,
    source: Path,
    out: Path,
    fault: Callable[[Exchange], None],
    method: str,
    key: str,
) -> None:
    proxy.inject(fault, method, key)
    published = proxied.publish(source, "adapters", "1")
    assert elapsed.total <= ATTEMPT_SECONDS
    assert published.created
    assert proxied.latest("adapters") == "1"
    _check_fetch(proxied, out, source)


def test_a_lost_response_to_the_final_write_counts_as_created(proxied: Store, proxy: FaultProxy, source: Path) -> None:
    proxy.inject(lose_answer, "PUT", "adapters/1/manifest.json")
    published = proxied.publish(source, "adapters", "1")
    assert published.created
    assert proxied.manifest("adapters/1") == published.manifest
    assert len(proxy.seen("PUT", "adapters/1/manifest.json")) == 2


@pytest.mark.parametrize(
    ("fault", "key", "code"),
    [
        pytest.param(SLOW_DOWN, "weights.bin", "store.server-failing", id="503 to an upload"),
        pytest.param(UNAVAILABLE, "manifest.json", "store.server-failing", id="503 to the last write"),
        pytest.param(
            answer(409, "ConditionalRequestConflict"),
            "manifest.json",
            "store.server-failing",
            id="409 to the last write",
        ),
        pytest.param(reset_after(100), "weights.bin", "store.unreachable", id="resets"),
        pytest.param(stall, "weights.bin", "store.unreachable", id="no answers to an upload"),
        pytest.param(stall, "manifest.json", "store.unreachable", id="no answers to the last write"),
    ],
)
def test_a_lasting_fault_ends_a_publication_in_bounded_time(
    proxied: Store,
    proxy: FaultProxy,
    elapsed: Elapsed,
    source: Path,
    out: Path,
    fault: Callable[[Exchange], None],
    key: str,
    code: str,
) -> None:
    proxy.inject(fault, "PUT", key, times=None)
    with raises(code, proxied.uri, key) as raised:
        Store(proxied.uri, FEW_ATTEMPTS).publish(source, "adapters", "1")
    assert elapsed.total <= FEW_ATTEMPTS.attempts * ATTEMPT_SECONDS
    assert raised.value.exit_status == 75
    assert len(proxy.seen("PUT", key)) == FEW_ATTEMPTS.attempts
    assert proxied.list() == []
    proxy.heal()
    assert proxied.publish(source, "adapters", "1").created
    _check_fetch(proxied, out, source)


def test_a_large_file_is_sent_in_parts(proxied: Store, proxy: FaultProxy, tmp_path: Path, out: Path) -> None:
    store = Store(proxied.uri, replace(LIMITS, part_size=5 * MIB))
    source = write_files(tmp_path / "source", {"large.bin": noise(12 * MIB)})
    proxy.inject(reset_after(MIB), "PUT", query="partNumber=2")
    assert store.publish(source, "adapters", "1").created
    parts = [request.query for request in proxy.seen("PUT", "large.bin", "partNumber=")]
    assert sorted(re.findall(r"partNumber=(\d)", " ".join(parts))) == ["1", "2", "2", "3"]
    _check_fetch(store, out, source)
    assert store.verify("adapters/1") == {}


def test_a_failed_multipart_upload_is_aborted(
    proxied: Store, proxy: FaultProxy, tmp_path: Path, s3_bucket: str
) -> None:
    import boto3

    store = Store(proxied.uri, replace(LIMITS, part_size=5 * MIB))
    source = write_files(tmp_path / "source", {"large.bin": noise(12 * MIB)})
    proxy.inject(reset_after(MIB), "PUT", query="partNumber=3", times=None)
    with raises("store.unreachable", "large.bin"):
        store.publish(source, "adapters", "1")
    assert boto3.client("s3").list_multipart_uploads(Bucket=s3_bucket).get("Uploads", []) == []
    assert store.list() == []


def test_a_deadline_ends_a_publication_without_responses(
    proxied: Store, proxy: FaultProxy, elapsed: Elapsed, source: Path
) -> None:
    proxy.inject(stall, "PUT", "weights.bin", times=None)
    with raises("store.deadline-exceeded", "90 seconds"):
        Store(proxied.uri, replace(FEW_ATTEMPTS, deadline=90)).publish(source, "adapters", "1")
    assert elapsed.timeouts == [60, 60], "the second attempt ends it"
    assert proxied.list() == []


@pytest.mark.parametrize("size", [100, 12 * MIB], ids=["in one request", "in parts"])
def test_a_deadline_during_an_upload_closes_files_and_aborts_it(
    proxied: Store, proxy: FaultProxy, tmp_path: Path, s3_bucket: str, size: int
) -> None:
    import boto3

    source = write_files(tmp_path / "source", {"late.bin": noise(size)})
    proxy.inject(never_answer, "PUT", "late.bin", times=None)
    with raises("store.deadline-exceeded", "60 seconds"):
        Store(proxied.uri, replace(LIMITS, deadline=60, part_size=5 * MIB)).publish(source, "adapters", "1")
    assert [each.path for each in psutil.Process().open_files() if str(source) in each.path] == []
    assert boto3.client("s3").list_multipart_uploads(Bucket=s3_bucket).get("Uploads", []) == []
    assert proxied.list() == []


def test_a_publisher_killed_during_the_upload_can_be_resumed(
    proxied: Store, proxy: FaultProxy, tmp_path: Path, out: Path
) -> None:
    source = write_files(tmp_path / "source", {f"{n}.bin": noise(1000, n) for n in range(20)})
    proxy.inject(stall, "PUT", ".bin", after=10, times=None)
    process = gumshoe("publish", source, "--store", proxied.uri, "--kind", "adapters", "--version", "1")
    wait_until(lambda: len(list(proxied.storage.entries("adapters/"))) == 10, process)
    process.kill()
    process.communicate()
    proxy.heal()
    there = [entry.key for entry in proxied.storage.entries("adapters/")]
    assert len(there) == 10
    assert proxied.list() == []
    with raises("artifacts.nothing-published", proxied.uri, "adapters"):
        proxied.fetch("adapters/latest", out)
    assert proxied.publish(source, "adapters", "1").created
    assert [len(proxy.seen("PUT", key)) for key in there] == [1] * 10  # not sent again
    _check_fetch(proxied, out, source)


def test_a_publisher_killed_before_the_final_write_can_be_resumed(
    proxied: Store, proxy: FaultProxy, source: Path, out: Path
) -> None:
    stalled = Event()
    proxy.inject(meanwhile(stalled.set, stall), "PUT", "adapters/1/manifest.json", times=None)
    process = gumshoe("publish", source, "--store", proxied.uri, "--kind", "adapters", "--version", "1")
    wait_until(stalled.is_set, process)
    process.kill()
    process.communicate()
    proxy.heal()
    assert proxied.list() == []
    assert proxied.publish(source, "adapters", "1").created
    assert len(proxy.seen("PUT", "weights.bin")) == 1
    _check_fetch(proxied, out, source)


@pytest.mark.parametrize("present", [False, True])
def test_a_store_without_conditional_writes_is_rejected(
    proxied: Store, proxy: FaultProxy, source: Path, present: bool
) -> None:
    if present:  # left by a publisher before the store lost, or hid, what it could
        proxied.storage.create(".conditional-writes", b"")
    proxy.inject(strip("If-None-Match"), "PUT", times=None)
    for _ in range(2):
        with raises("store.no-conditional-writes", proxied.uri):
            proxied.publish(source, "adapters", "1")
    assert proxied.list() == []
    assert proxy.seen("PUT", "adapters/") == []


# Fetching


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(cut_answer(PIECE, reset=False), id="ends early"),
        pytest.param(cut_answer(2 * PIECE), id="is reset"),
        pytest.param(stall_after(2 * PIECE), id="stalls"),
    ],
)
def test_an_interrupted_download_resumes_at_the_last_byte(
    proxied: Store, proxy: FaultProxy, elapsed: Elapsed, source: Path, out: Path, fault: Callable[[Exchange], None]
) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(fault, "GET", "weights.bin")
    fetched = proxied.fetch("adapters/1", out)
    assert elapsed.total <= ATTEMPT_SECONDS
    assert fetched.downloaded == len(BIG) + 2
    first, second = (request.range for request in proxy.seen("GET", "weights.bin"))
    assert first == ""
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) < len(BIG)
    assert read_files(out) == read_files(source)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(UNAVAILABLE, id="503"),
        pytest.param(stall, id="no answer"),
        pytest.param(lose_answer, id="answer lost"),
        pytest.param(stall_after(0), id="headers and no body"),
    ],
)
@pytest.mark.parametrize("key", ["manifest.json", "weights.bin"])
def test_a_fetch_survives_a_temporary_fault(
    proxied: Store,
    proxy: FaultProxy,
    elapsed: Elapsed,
    source: Path,
    out: Path,
    fault: Callable[[Exchange], None],
    key: str,
) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(fault, "GET", key)
    _check_fetch(proxied, out, source)
    assert elapsed.total <= ATTEMPT_SECONDS


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(UNAVAILABLE, "store.server-failing", id="503"),
        pytest.param(stall, "store.unreachable", id="no answers"),
        pytest.param(stall_after(0), "store.unreachable", id="headers and no bodies"),
        pytest.param(cut_answer(0, reset=False), "store.unreachable", id="empty bodies"),
    ],
)
@pytest.mark.parametrize("key", ["manifest.json", "weights.bin"])
def test_a_lasting_fault_ends_a_fetch_in_bounded_time(
    proxied: Store,
    proxy: FaultProxy,
    elapsed: Elapsed,
    source: Path,
    out: Path,
    fault: Callable[[Exchange], None],
    key: str,
    code: str,
) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(fault, "GET", key, times=None)
    with raises(code, proxied.uri, key) as raised:
        Store(proxied.uri, FEW_ATTEMPTS).fetch("adapters/1", out)
    assert elapsed.total <= FEW_ATTEMPTS.attempts**2 * ATTEMPT_SECONDS, "boto3 and the store both retry"
    assert raised.value.exit_status == 75
    assert not out.exists()
    proxy.heal()
    _check_fetch(proxied, out, source)


@pytest.mark.parametrize("reset", [True, False])
def test_an_interrupted_listing_is_retried(proxied: Store, proxy: FaultProxy, source: Path, reset: bool) -> None:
    published = proxied.publish(source, "adapters", "1")
    proxy.inject(cut_answer(200, reset=reset), "GET", query="list-type=2")
    assert proxied.list() == [published.manifest]


def test_an_interrupted_fetch_is_resumed(proxied: Store, proxy: FaultProxy, source: Path, out: Path) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(cut_answer(2 * PIECE, reset=False), "GET", "weights.bin")
    proxy.inject(DENIED, "GET", "weights.bin", times=None)
    with raises("store.access-denied", "weights.bin"):
        proxied.fetch("adapters/1", out)
    assert not out.exists()
    proxy.heal()
    assert PIECE - 2 <= proxied.fetch("adapters/1", out).downloaded < 2 * PIECE
    assert read_files(out) == read_files(source)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_leftovers_of_a_fetch_do_not_enter_another_artifact(
    proxied: Store, proxy: FaultProxy, source: Path, tmp_path: Path, out: Path
) -> None:
    files = {"weights.bin": noise(3 * PIECE, 2), "config.json": b"[]"}
    other = write_files(
        tmp_path / "other",
        {"weights.bin/a": b"a folder where the other has a file", "last": b"", "config.json": b"[1, 2]"},
    )
    proxied.publish(other, "adapters", "other")
    proxied.publish(write_files(source, files), "adapters", "1")
    proxy.inject(DENIED, "GET", "/last", times=None)
    with raises("store.access-denied", "last"):
        proxied.fetch("adapters/other", out)
    assert not out.exists()
    proxied.fetch("adapters/1", out)
    assert read_files(out) == files


def test_a_deadline_ends_a_slow_fetch(proxied: Store, proxy: FaultProxy, clock: Clock, source: Path, out: Path) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(trickle(clock, 60), "GET", "weights.bin")
    with raises("store.deadline-exceeded", "3600 seconds"):
        Store(proxied.uri, replace(LIMITS, read_timeout=HOUR, deadline=HOUR)).fetch("adapters/1", out)
    assert not out.exists()
    proxy.heal()
    _check_fetch(proxied, out, source)


def test_a_signal_ends_a_slow_fetch(proxied: Store, proxy: FaultProxy, source: Path, out: Path) -> None:
    proxied.publish(source, "adapters", "1")
    is_over = Event()

    def act(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.start_reply(answer)
        os.kill(os.getpid(), signal.SIGTERM)
        for byte in itertools.cycle(answer.body):
            if is_over.wait(0.01):
                break
            exchange.send(bytes([byte]))

    proxy.inject(act, "GET", "weights.bin")
    try:
        with pytest.raises(SystemExit), exit_on_signals():
            Store(proxied.uri, replace(LIMITS, read_timeout=HOUR, deadline=HOUR)).fetch("adapters/1", out)
    finally:
        is_over.set()
    assert not out.exists()
    proxy.heal()
    _check_fetch(proxied, out, source)


def test_a_deadline_ends_a_slow_verification(proxied: Store, proxy: FaultProxy, clock: Clock, source: Path) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(trickle(clock, 60), "GET", "weights.bin")
    with raises("store.deadline-exceeded", "3600 seconds"):
        Store(proxied.uri, replace(LIMITS, read_timeout=HOUR, deadline=HOUR)).verify("adapters/1")


def test_a_deadline_ends_a_fetch_without_responses(
    proxied: Store, proxy: FaultProxy, elapsed: Elapsed, source: Path, out: Path
) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(stall, "GET", "weights.bin", times=None)
    with raises("store.deadline-exceeded", "90 seconds"):
        Store(proxied.uri, replace(FEW_ATTEMPTS, deadline=90)).fetch("adapters/1", out)
    assert elapsed.total <= FEW_ATTEMPTS.attempts**2 * ATTEMPT_SECONDS


def test_a_deadline_shorter_than_the_read_timeout_is_kept(
    proxied: Store, proxy: FaultProxy, elapsed: Elapsed, source: Path, out: Path
) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(stall, "GET", "weights.bin", times=None)
    with raises("store.deadline-exceeded", "10 seconds"):
        Store(proxied.uri, replace(FEW_ATTEMPTS, deadline=10)).fetch("adapters/1", out)
    assert {*elapsed.timeouts} == {10}


def test_a_file_damaged_in_transit_is_fetched_again(proxied: Store, proxy: FaultProxy, source: Path, out: Path) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(corrupt, "GET", "weights.bin")
    assert proxied.fetch("adapters/1", out).downloaded == 2 * len(BIG) + 2
    assert read_files(out) == read_files(source)


def test_a_file_always_damaged_in_transit_is_never_fetched(
    proxied: Store, proxy: FaultProxy, source: Path, out: Path
) -> None:
    proxied.publish(source, "adapters", "1")
    proxy.inject(corrupt, "GET", "weights.bin", times=None)
    with raises("artifacts.damaged-in-store", proxied.uri, "weights.bin"):
        proxied.fetch("adapters/1", out)
    assert not out.exists()
    assert proxied.verify("adapters/1") == {"weights.bin": "its SHA-256 differs"}
    proxy.heal()
    _check_fetch(proxied, out, source)


@pytest.mark.ci
def test_two_processes_that_fetch_into_one_directory_share_the_work(
    proxied: Store, proxy: FaultProxy, source: Path, out: Path
) -> None:
    proxied.publish(source, "adapters", "1")
    before = len(proxy.seen("GET", "manifest.json"))

    def wait_for_both() -> None:
        wait_until(lambda: len(proxy.seen("GET", "manifest.json")) >= before + 2 or proxy.closing.is_set())

    proxy.inject(meanwhile(wait_for_both), "GET", "weights.bin")
    processes = [gumshoe("fetch", "adapters/1", "--store", proxied.uri, "--out", out) for _ in range(2)]
    answers = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert len(proxy.seen("GET", "weights.bin")) == 1
    assert read_files(out) == read_files(source)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


# Reading by URI


def test_reading_resumes_after_each_interruption(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    overwrite(proxied, "mail.mbox", BIG, tmp_path)
    for cut in (PIECE, 100, PIECE, 0):
        proxy.inject(cut_answer(cut, reset=False), "GET", "mail.mbox")
    with open_uri(f"{proxied.uri}/mail.mbox", replace(LIMITS, attempts=5)) as file:
        assert file.read() == BIG


def test_an_object_replaced_during_reading_is_an_error(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    overwrite(proxied, "mail.mbox", BIG, tmp_path)
    proxy.inject(cut_answer(PIECE, reset=False), "GET", "mail.mbox")
    with open_uri(f"{proxied.uri}/mail.mbox", LIMITS) as file:
        overwrite(proxied, "mail.mbox", noise(3 * PIECE, 1), tmp_path)
        with raises("store.object-changed", f"{proxied.uri}/mail.mbox"):
            file.read()


def test_an_object_removed_during_reading_is_an_error(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    overwrite(proxied, "mail.mbox", BIG, tmp_path)
    proxy.inject(cut_answer(PIECE, reset=False), "GET", "mail.mbox")
    with open_uri(f"{proxied.uri}/mail.mbox", LIMITS) as file:
        proxied.storage.delete(["mail.mbox"])
        with raises("store.not-found", f"{proxied.uri}/mail.mbox"):
            file.read()


def test_reading_damaged_bytes_is_an_error(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    overwrite(proxied, "mail.mbox", BIG, tmp_path)
    proxy.inject(corrupt, "GET", "mail.mbox")
    with (
        open_uri(f"{proxied.uri}/mail.mbox", LIMITS) as file,
        raises("store.checksum-mismatch", f"{proxied.uri}/mail.mbox"),
    ):
        file.read()


def test_reading_from_a_server_that_always_disconnects_ends(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    overwrite(proxied, "mail.mbox", BIG, tmp_path)
    proxy.inject(cut_answer(0, reset=False), "GET", "mail.mbox", times=None)
    with (
        open_uri(f"{proxied.uri}/mail.mbox", LIMITS) as file,
        raises("store.unreachable", f"{proxied.uri}/mail.mbox"),
    ):
        file.read()


# Error messages


@dataclass(frozen=True)
class Refusal:
    """A server's error response, the code of the error that it becomes, and values in its message."""

    fault: Callable[[Exchange], None]
    code: str
    values: tuple[str, ...]
    status: int = field(default=1, kw_only=True)


REFUSALS = {
    "access denied": Refusal(
        DENIED,
        "store.access-denied",
        ("s3:GetObject", "s3:PutObject", "s3:ListBucket"),
    ),
    "wrong region, redirected": Refusal(
        answer(
            301,
            "PermanentRedirect",
            "The bucket you are attempting to access must be addressed using the specified endpoint.",
            headers={"x-amz-bucket-region": "eu-central-1"},
            more="<Bucket>b</Bucket><Endpoint>b.s3.eu-central-1.amazonaws.com</Endpoint>",
        ),
        "store.wrong-region",
        ("eu-central-1", "AWS_REGION"),
    ),
    "wrong region, signature refused": Refusal(
        answer(
            400,
            "AuthorizationHeaderMalformed",
            "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-3'",
            more="<Region>eu-west-3</Region>",
        ),
        "store.wrong-region",
        ("eu-west-3", "AWS_REGION"),
    ),
    "clock skew": Refusal(
        answer(
            403,
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
            more="<RequestTime>20260101T000000Z</RequestTime><ServerTime>2026-01-02T00:00:00Z</ServerTime>",
        ),
        "store.clock-skew",
        ("The difference between the request time and the current time",),
    ),
    "unknown key": Refusal(
        answer(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
        "store.unknown-access-key",
        ("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
    ),
    "wrong secret": Refusal(
        answer(403, "SignatureDoesNotMatch", "The request signature we calculated does not match."),
        "store.wrong-secret-key",
        ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
    ),
    "expired token": Refusal(
        answer(400, "ExpiredToken", "The provided token has expired."),
        "store.expired-credentials",
        ("ExpiredToken", "AWS_SESSION_TOKEN"),
    ),
    "token of other keys": Refusal(
        answer(400, "InvalidToken", "The provided token is malformed or otherwise invalid."),
        "store.invalid-session-token",
        ("InvalidToken", "AWS_SESSION_TOKEN"),
    ),
    "something that nobody foresaw": Refusal(
        answer(400, "KeyTooLongError", "Your key is too long"),
        "store.request-refused",
        ("KeyTooLongError", "Your key is too long"),
    ),
    "failing": Refusal(
        answer(500, "InternalError", "We encountered an internal error."),
        "store.server-failing",
        ("InternalError",),
        status=75,
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
@pytest.mark.parametrize("operation", ["fetch", "list", "publish"])
def test_a_refusal_names_bucket_and_key(
    proxied: Store,
    proxy: FaultProxy,
    elapsed: Elapsed,
    source: Path,
    out: Path,
    s3_bucket: str,
    refusal: Refusal,
    operation: str,
) -> None:
    for method in ("HEAD", "PUT") if operation == "publish" else ("HEAD", "GET"):
        proxy.inject(refusal.fault, method, times=None)
    store = Store(proxied.uri, FEW_ATTEMPTS)
    operations: dict[str, tuple[Callable[[], object], str]] = {
        "fetch": (lambda: store.fetch("adapters/1", out), "project/artifacts/adapters/1/manifest.json"),
        "list": (store.list, "project/artifacts/"),
        "publish": (lambda: store.publish(source, "adapters", "1"), "project/artifacts/.conditional-writes"),
    }
    operate, key = operations[operation]
    with raises(refusal.code, f"s3://{s3_bucket}/{key}", *refusal.values) as raised:
        operate()
    assert elapsed.total <= FEW_ATTEMPTS.attempts**2 * ATTEMPT_SECONDS
    assert raised.value.exit_status == refusal.status


def test_a_missing_bucket_is_named(aws_environment: pytest.MonkeyPatch, s3_server: str, out: Path) -> None:
    aws_environment.setenv("AWS_ENDPOINT_URL", s3_server)
    with raises("store.no-such-bucket", "s3://no-such-bucket/x/adapters/1/manifest.json", "'no-such-bucket'"):
        Store("s3://no-such-bucket/x", LIMITS).fetch("adapters/1", out)


def test_missing_credentials_are_explained(aws_environment: pytest.MonkeyPatch, s3_server: str, out: Path) -> None:
    import boto3

    aws_environment.setenv("AWS_ENDPOINT_URL", s3_server)
    aws_environment.delenv("AWS_ACCESS_KEY_ID")
    aws_environment.delenv("AWS_SECRET_ACCESS_KEY")
    aws_environment.setenv("HOME", str(out))
    boto3.setup_default_session()  # the one before may remember credentials
    try:
        with raises("store.no-credentials", "s3://bucket/x/adapters/1/manifest.json", "AWS_ACCESS_KEY_ID"):
            Store("s3://bucket/x", LIMITS).fetch("adapters/1", out)
    finally:
        boto3.setup_default_session()


def test_incomplete_credentials_are_explained(aws_environment: pytest.MonkeyPatch, s3_server: str, out: Path) -> None:
    import boto3

    aws_environment.setenv("AWS_ENDPOINT_URL", s3_server)
    aws_environment.delenv("AWS_SECRET_ACCESS_KEY")
    boto3.setup_default_session()
    try:
        with raises("store.no-credentials", "s3://bucket/x", "AWS_SECRET_ACCESS_KEY"):
            Store("s3://bucket/x", LIMITS).fetch("adapters/1", out)
    finally:
        boto3.setup_default_session()


def test_an_unreachable_endpoint_is_explained(aws_environment: pytest.MonkeyPatch, elapsed: Elapsed, out: Path) -> None:
    aws_environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{find_free_port()}")
    with raises("store.unreachable", "s3://bucket/x/", "AWS_ENDPOINT_URL") as raised:
        Store("s3://bucket/x", LIMITS).fetch("adapters/1", out)
    assert elapsed.total <= LIMITS.attempts * 20
    assert raised.value.exit_status == 75


@pytest.mark.parametrize(
    ("bucket", "code"),
    [
        ("Not A Bucket", "store.invalid-bucket-or-key"),
        ("..", "store.no-such-bucket"),
        ("a/", "store.no-such-bucket"),
    ],
)
def test_an_invalid_bucket_name_is_explained(proxied: Store, bucket: str, code: str, out: Path) -> None:
    del proxied
    with raises(code, f"s3://{bucket.strip('/')}/"):
        Store(f"s3://{bucket}/x", LIMITS).fetch("adapters/1", out)


def test_a_listing_that_is_not_xml_is_an_error(proxied: Store, proxy: FaultProxy) -> None:
    """Answer with a web page, as a wrong endpoint would."""
    proxy.inject(edit(lambda _: b"<!doctype html><p>Welcome"), "GET", times=None)
    with raises("store.server-failing", proxied.uri):
        proxied.list()
