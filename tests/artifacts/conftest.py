"""Where the tests of artifacts store things: in a directory, in a bucket, and in a bucket behind faults."""

from dataclasses import replace
from pathlib import Path

import pytest

from gumshoe.artifacts.storage import Limits
from gumshoe.artifacts.store import Store
from tests.artifacts.fault_proxy import FaultProxy

QUICK = Limits(connect_timeout=1, read_timeout=1, attempts=3, backoff=0.1, workers=4)
PATIENT = replace(QUICK, read_timeout=30)  # of a server that many ask at once


@pytest.fixture(params=["file", "s3"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store, in a directory and in a bucket."""
    if request.param == "file":
        return (tmp_path / "store").as_uri()
    return f"s3://{request.getfixturevalue('s3_bucket')}/project/artifacts"


@pytest.fixture
def store(store_uri: str) -> Store:
    return Store(store_uri, QUICK)


@pytest.fixture
def behind(proxy: FaultProxy, s3_bucket: str, aws_environment: pytest.MonkeyPatch) -> Store:
    """A store that is reached through the proxy, with limits that make tests quick. The environment names it too."""
    aws_environment.setenv("AWS_ENDPOINT_URL", proxy.address)
    return Store(f"s3://{s3_bucket}/project/artifacts", QUICK)
