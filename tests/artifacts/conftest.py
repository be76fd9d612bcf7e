"""Stores for the tests: in a directory, in a bucket, and in a bucket behind a faulty proxy."""

from pathlib import Path

import pytest

from gumshoe.artifacts.storage import Limits
from gumshoe.artifacts.store import Store
from tests.artifacts.fault_proxy import Elapsed, FaultProxy, elapse_at_once
from tests.waiting import Clock

LIMITS = Limits(connect_timeout=60, read_timeout=60, attempts=3, backoff=1, workers=4)


@pytest.fixture(params=["file", "s3"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URI of an empty store, once in a directory and once in a bucket."""
    if request.param == "file":
        return (tmp_path / "store").as_uri()
    return f"s3://{request.getfixturevalue('s3_bucket')}/project/artifacts"


@pytest.fixture
def store(store_uri: str) -> Store:
    return Store(store_uri, LIMITS)


@pytest.fixture
def elapsed(proxy: FaultProxy, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    """Let timeouts and pauses of the S3 client elapse immediately, and record them."""
    return elapse_at_once(proxy, clock, monkeypatch)


@pytest.fixture
def proxied(proxy: FaultProxy, s3_bucket: str, aws_environment: pytest.MonkeyPatch, elapsed: Elapsed) -> Store:
    """Return a store behind the proxy. The environment names the proxy, too."""
    del elapsed
    aws_environment.setenv("AWS_ENDPOINT_URL", proxy.address)
    return Store(f"s3://{s3_bucket}/project/artifacts", LIMITS)
