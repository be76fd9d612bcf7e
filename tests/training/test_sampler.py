"""Publishing a policy to a server that does not answer."""

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import find_free_port
from tests.errors import raises

MODEL = SimpleNamespace(save_pretrained=lambda place: Path(place).mkdir(parents=True))


def test_a_lost_server_is_retried_until_the_run_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.training.grpo.sampler import VLLMSampler

    monkeypatch.setattr("gumshoe.training.grpo.sampler._PAUSE", 0.0)
    chat: Any = None  # no session is opened
    address = f"http://127.0.0.1:{find_free_port()}"
    sampler = VLLMSampler((address,), chat, 1000, tmp_path)
    asked = count(1)
    with raises("inference.server-unreachable", address):
        sampler.publish(MODEL, "r1-1-policy-0", lambda: next(asked) == 2)
    assert next(asked) == 3, "it stops retrying"
    assert sampler.version == "", "no episode may use it"
    served = json.loads((tmp_path / "served.json").read_text())
    assert list(served) == ["r1-1-policy-0"], "a restarted server must load it"
    assert Path(served["r1-1-policy-0"]).is_dir()
