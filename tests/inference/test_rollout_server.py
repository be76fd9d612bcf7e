"""The command of a rollout server equals that of a local server, except for its address."""

from pathlib import Path

import pytest

from gumshoe.artifacts.hub import ModelLocation
from gumshoe.inference.policy_names import TINY
from gumshoe.inference.rollout_server import build_launch, main
from gumshoe.inference.vllm_server import ServerOptions, build_launch_command, is_vllm_installed
from tests.conftest import skip_missing
from tests.errors import raises


@pytest.fixture(autouse=True)
def with_vllm() -> None:
    if not is_vllm_installed():
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")


def test_a_rollout_server_has_the_arguments_of_a_local_server() -> None:
    words = ["--model", "tiny", "--port", "8123", "--max-model-len", "2048", "--max-lora-rank", "12"]
    found = build_launch([*words, "--dtype", "bfloat16", "--max-num-seqs", "64", "--no-enable-prefix-caching"])
    options = ServerOptions(
        max_model_len=2048,
        max_lora_rank=16,  # rounded up to a rank that vLLM accepts
        dtype="bfloat16",
        arguments=("--shutdown-timeout", "15", "--max-num-seqs", "64", "--no-enable-prefix-caching"),
    )
    assert found == build_launch_command(ModelLocation(str(TINY), local_files_only=True), options, "127.0.0.1", 8123)
    assert found.command[found.command.index("--served-model-name") + 1] == "base"
    assert found.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


def test_the_log_level_is_not_changed_by_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_launch(["--model", "tiny"]).environment["VLLM_LOGGING_LEVEL"]
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "CRITICAL")  # as `trl` does when it is imported
    assert build_launch(["--model", "tiny"]).environment["VLLM_LOGGING_LEVEL"] == before
    own = ServerOptions(environment={"VLLM_LOGGING_LEVEL": "DEBUG"})
    assert (
        build_launch_command(ModelLocation("model", local_files_only=True), own, "127.0.0.1", 1).environment[
            "VLLM_LOGGING_LEVEL"
        ]
        == "DEBUG"
    )


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_a_server_listens_on_the_address_of_its_pod_with_a_key(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_IP", address)
    monkeypatch.setenv("VLLM_API_KEY", "k" * 32)
    found = build_launch(["--model", "tiny", "--adapters", "/adapters"])
    assert found.command[found.command.index("--host") + 1] == address
    assert "k" * 32 not in " ".join(found.command), "other users of the machine see command lines"
    assert found.environment["VLLM_API_KEY"] == "k" * 32
    assert found.environment["GUMSHOE_ADAPTER_DIRECTORIES"] == '["/adapters"]'
    assert found.environment["GUMSHOE_VERIFY_ADAPTERS"] == "1"
    assert found.command[found.command.index("--middleware") + 1] == "gumshoe.inference.vllm_access.AccessControl"


@pytest.mark.parametrize("words", [["--host", "0.0.0.0"], ["--host", "::"], ["--host", "10.0.0.7"], []])
def test_a_server_without_a_key_listens_on_loopback_only(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setenv("POD_IP", "10.0.0.8")
    with raises("inference.server-key-missing", words[1] if words else "10.0.0.8"):
        build_launch(["--model", "tiny", *words])
    monkeypatch.delenv("POD_IP")
    found = build_launch(["--model", "tiny"])
    assert found.command[found.command.index("--host") + 1] == "127.0.0.1"


def test_a_key_is_used_without_its_line_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients cannot send it, and vLLM would compare it."""
    monkeypatch.setenv("VLLM_API_KEY", f"{'k' * 32}\n")
    assert build_launch(["--model", "tiny"]).environment["VLLM_API_KEY"] == "k" * 32


def test_variables_of_services_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM does not start if VLLM_PORT is not a number."""
    monkeypatch.setenv("VLLM_PORT", "tcp://10.96.0.7:8000")
    monkeypatch.setenv("VLLM_DP_MASTER_PORT", "29500")
    found = build_launch(["--model", "tiny"]).environment
    assert ("VLLM_PORT" in found, found["VLLM_DP_MASTER_PORT"]) == (False, "29500")


def test_adapters_cannot_come_from_resolvers_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LORA_RESOLVER_HF_REPO_LIST", "somebody/adapters")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("GUMSHOE_ADAPTER_DIRECTORIES", '["/"]')
    found = build_launch(["--model", "tiny"]).environment
    assert not {"VLLM_LORA_RESOLVER_HF_REPO_LIST", "VLLM_SERVER_DEV_MODE", "GUMSHOE_ADAPTER_DIRECTORIES"} & found.keys()


def test_a_model_of_the_hub_is_served_at_its_commit() -> None:
    location = ModelLocation("acme/model", local_files_only=False, revision="c0ffee")
    command = build_launch_command(location, ServerOptions(), "127.0.0.1", 1).command
    assert [command[command.index(each) + 1] for each in ("--model", "--revision", "--tokenizer-revision")] == [
        "acme/model",
        "c0ffee",
        "c0ffee",
    ]


@pytest.mark.parametrize(
    "argument", ["--trust-remote-code", "--trust_remote_code", "--trust-remote-code=true", "--trust"]
)
def test_code_of_a_model_is_never_run(argument: str) -> None:
    with raises("inference.remote-code", argument):
        build_launch(["--model", "tiny", argument])


@pytest.mark.parametrize("argument", ["--hos=0.0.0.0", "--hos", "--por", "--uds=/x", "--api-k=s3cret", "--config=x"])
def test_arguments_that_make_the_server_less_safe_are_refused(argument: str) -> None:
    with raises("inference.reserved-argument", argument.partition("=")[0]) as raised:
        build_launch(["--model", "tiny", argument])
    assert "s3cret" not in str(raised.value)
    build_launch(["--model", "tiny", "--config-format=hf", "--hf-token", "x"])


def test_a_missing_model_is_reported_before_vllm_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--model", str(tmp_path / "none")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.endswith("[sources.no-such-model-directory]\n")
    assert str(tmp_path / "none") in said
