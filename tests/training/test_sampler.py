"""Publishing policies to servers: one that does not answer, and one that serves several at once."""

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import find_free_port
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM

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


def test_policies_stay_loaded_as_long_as_episodes_use_them(tmp_path: Path) -> None:
    from gumshoe.training.grpo.sampler import VLLMSampler

    def save(place: str) -> None:
        Path(place).mkdir(parents=True)
        (Path(place) / "adapter_config.json").write_text('{"r": 8}')
        (Path(place) / "adapter_model.safetensors").write_bytes(b"weights")

    def served() -> list[str]:
        return list(json.loads((tmp_path / "served.json").read_text()))

    chat: Any = None
    with FakeVLLM() as server:
        sampler = VLLMSampler((server.address,), chat, 1000, tmp_path)
        for number, in_use in enumerate([(), ("p0",), ("p0", "p1"), ("p1",)]):
            sampler.publish(SimpleNamespace(save_pretrained=save), f"p{number}", lambda: False)
            sampler.retire(in_use)
            assert set(server.roots) == {*in_use, f"p{number}"}
            assert served() == sorted(server.roots), "a restarted server must load all of them"
            assert sorted(each.name for each in (tmp_path / "adapters").iterdir()) == served()
        assert sampler.version == "p3"
        sampler.retire(())
        assert served() == ["p3"]
