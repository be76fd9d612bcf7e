"""The rank of an adapter, which decides how vLLM is started."""

from pathlib import Path

import pytest

from gumshoe.inference.policy_names import _read_rank
from tests.errors import raises


def test_the_rank_is_read(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 16}')
    assert _read_rank(tmp_path) == 16


BROKEN = ["", "[]", "{}", "null", '{"r": "16"}', '{"r": 0}', '{"r": true}', '{"r": 1.5}', '{"r": 1, "a": "\\ud800"}']


@pytest.mark.parametrize("text", [*BROKEN, "[" * 10**5])
def test_a_damaged_configuration_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(text)
    with raises("inference.adapter-damaged", path):
        _read_rank(tmp_path)
