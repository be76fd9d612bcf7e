"""What is done where a server does not take a policy."""

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.training.grpo.sampler import VLLMSampler
from tests.conftest import free_port
from tests.errors import raises

MODEL = SimpleNamespace(save_pretrained=lambda place: Path(place).mkdir(parents=True))


def test_a_server_that_is_gone_is_waited_for_until_the_run_is_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gumshoe.training.grpo.sampler._PAUSE", 0.0)
    chat: Any = None  # nothing is said
    address = f"http://127.0.0.1:{free_port()}"
    sampler = VLLMSampler((address,), chat, 1000, tmp_path)
    asked = count(1)
    with raises("inference.server-unreachable", address):
        sampler.publish(MODEL, "r1-1-policy-0", lambda: next(asked) == 2)
    assert next(asked) == 3, "it tries no more"
    assert sampler.version == "", "no episode may name it"
    served = json.loads((tmp_path / "served.json").read_text())
    assert served["name"] == "r1-1-policy-0", "what a server that is started again is to have"
    assert Path(served["path"]).is_dir()
