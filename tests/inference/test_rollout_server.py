"""What starts a rollout server on another machine: that which starts one here, but for its address."""

from pathlib import Path

import pytest

from gumshoe.inference.policy_names import TINY
from gumshoe.inference.rollout_server import launch, main
from gumshoe.inference.vllm_server import ServerOptions, is_installed, launch_of
from tests.conftest import missing


@pytest.fixture(autouse=True)
def with_vllm() -> None:
    if not is_installed():
        missing("vLLM (the CPU build comes with `make install` on Linux)")


def test_a_server_elsewhere_is_started_as_one_here_is() -> None:
    words = ["--model", "tiny", "--port", "8123", "--max-model-len", "2048", "--max-lora-rank", "12"]
    found = launch([*words, "--dtype", "bfloat16", "--max-num-seqs", "64", "--no-enable-prefix-caching"])
    options = ServerOptions(
        max_model_len=2048,
        max_lora_rank=16,  # the least that vLLM has room for
        dtype="bfloat16",
        arguments=("--max-num-seqs", "64", "--no-enable-prefix-caching"),
    )
    assert found == launch_of(str(TINY), options, "0.0.0.0", 8123)
    assert found.command[found.command.index("--served-model-name") + 1] == "base"
    assert found.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


def test_a_server_tells_what_it_does_whatever_a_library_set_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    before = launch(["--model", "tiny"]).environment["VLLM_LOGGING_LEVEL"]
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "CRITICAL")  # as `trl` sets it when it is imported
    assert launch(["--model", "tiny"]).environment["VLLM_LOGGING_LEVEL"] == before
    own = ServerOptions(environment={"VLLM_LOGGING_LEVEL": "DEBUG"})
    assert launch_of("model", own, "127.0.0.1", 1).environment["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_a_model_that_is_not_there_is_told_before_vllm_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--model", str(tmp_path / "none")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.endswith("[sources.no-such-model-directory]\n")
    assert str(tmp_path / "none") in said
