"""Adapters in a store, as a trainer hands them over."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gumshoe.artifacts.adapter_layout import ADAPTERS
from gumshoe.artifacts.storage import Deadline, Limits
from gumshoe.artifacts.store import Store
from gumshoe.cluster.adapter_loader import PollInterval

STORE = Limits(connect_timeout=600, read_timeout=600, attempts=2, backoff=0.1, workers=2, deadline=3600)
PACE = PollInterval(look=0.02, backoff=0.1, answer=3600, load=3600, store=STORE)
IMPATIENT = replace(PACE, answer=0.7, load=0.7, store=replace(STORE, read_timeout=0.7))
"""For what never answers. What answers may be too slow for it once, so look until it is as it should be."""


def hand_over(store: Store, directory: Path, version: str, rank: int = 8) -> bytes:
    """Publish an adapter, made in a directory: its weights."""
    place, weights = directory / version, version.encode() * 1000
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (place / "adapter_model.safetensors").write_bytes(weights)
    store.publish(place, ADAPTERS, version)
    return weights


def overwrite(store: Store, key: str, data: bytes, scratch: Path) -> None:
    """Put other bytes in a store, past all that keeps it whole."""
    path = scratch / "other-bytes"
    path.write_bytes(data)
    store.storage.upload({key: path}, Deadline(10), lambda _: None)


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, in a directory and in a bucket."""
    if request.param == "file":
        return Store((tmp_path / "store").as_uri(), STORE)
    return Store(f"s3://{request.getfixturevalue('s3_bucket')}/runs/r1/policies", STORE)
