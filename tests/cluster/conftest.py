"""Publish adapters to a store, as a trainer does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gumshoe.artifacts.adapter_layout import ADAPTERS
from gumshoe.artifacts.storage import Deadline, Limits
from gumshoe.artifacts.store import Store
from gumshoe.cluster.adapter_loader import PollInterval

STORE = Limits(connect_timeout=600, read_timeout=600, attempts=2, backoff=0.1, workers=2, deadline=3600)
PACE = PollInterval(interval=0.02, max_backoff=0.1, request_timeout=3600, load_timeout=3600, store_limits=STORE)
IMPATIENT = replace(PACE, request_timeout=0.7, load_timeout=0.7, store_limits=replace(STORE, read_timeout=0.7))
"""Short timeouts for servers that never answer. A slow machine may exceed them, so reconcile until it works."""


def publish_adapter(store: Store, directory: Path, version: str, rank: int = 8) -> bytes:
    """Publish an adapter with dummy weights, and return the weights."""
    place, weights = directory / version, version.encode() * 1000
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (place / "adapter_model.safetensors").write_bytes(weights)
    store.publish(place, ADAPTERS, version)
    return weights


def overwrite(store: Store, key: str, data: bytes, scratch: Path) -> None:
    """Overwrite an object in a store, bypassing all checks."""
    path = scratch / "other-bytes"
    path.write_bytes(data)
    store.storage.upload({key: path}, Deadline(10), lambda _: None)


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Create an empty store: a directory, then a bucket."""
    if request.param == "file":
        return Store((tmp_path / "store").as_uri(), STORE)
    return Store(f"s3://{request.getfixturevalue('s3_bucket')}/runs/r1/policies", STORE)
