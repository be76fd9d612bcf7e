"""A real vLLM server: sampled tokens, their probabilities, and adapters."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gumshoe.inference.policy import Completion, Sampling
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer, unload_adapter
from tests.errors import raises
from tests.shared_server import MAX_MODEL_LEN, NAME, SharedServer, write_hostile_tiny
from tests.waiting import wait_until

pytestmark = pytest.mark.ci

PROMPTS = [[5, 9, 17, 33, 12], list(range(20, 220, 3)), [1, 100, 101, 102]]
STOP = 2
AT_ONCE = RequestLimits(backoff=0.1, patience=0)  # do not wait for a missing adapter


def sample(server: SharedServer | VLLMServer, sampling: Sampling, model: str = NAME) -> list[Completion]:
    """Return the continuation of each prompt."""

    async def run() -> list[Completion]:
        async with VLLMPolicy([server.url], model, limits=AT_ONCE) as policy:
            asked = [policy.sample(ids, sampling, stop_ids=[STOP], seed=number) for number, ids in enumerate(PROMPTS)]
            return await asyncio.gather(*asked)

    return asyncio.run(run())


def logprobs_of(model: Any, prompt: list[int], ids: tuple[int, ...], temperature: float) -> list[float]:
    """Return the log-probability of each sampled token, computed in this process in float32."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]  # [tokens, vocabulary]
    of_all = torch.log_softmax(logits / temperature, dim=-1)
    return [float(each[token]) for each, token in zip(of_all, ids, strict=True)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_ignore_sampling_defaults_in_the_model_files(
    vllm: SharedServer, model: Any, temperature: float
) -> None:
    """`generation_config.json` has temperature 0.1, top_p 0.5, top_k 3, a repetition penalty and other stop tokens."""
    for prompt, completion in zip(PROMPTS, sample(vllm, Sampling(temperature, max_tokens=48)), strict=True):
        expected = logprobs_of(model, prompt, completion.ids, temperature)
        assert completion.logprobs == pytest.approx(expected, abs=1e-3)
        assert completion.finish == ("stop" if completion.ids[-1] == STOP else "length")
        assert len(completion.ids) == 48 or completion.ids[-1] == STOP


def test_given_continuations_are_scored_as_by_the_model(vllm: SharedServer, model: Any) -> None:
    continuations = [(7,), (40, 41, 42), (300, 9, 9, 12, 500)]

    async def score(prompt: list[int]) -> list[float]:
        async with VLLMPolicy([vllm.url], NAME, limits=AT_ONCE) as policy:
            return await policy.score(prompt, continuations)

    for prompt in PROMPTS:
        expected = [sum(logprobs_of(model, prompt, each, 1.0)) for each in continuations]
        assert asyncio.run(score(prompt)) == pytest.approx(expected, abs=5e-3)


def check_logprobs(url: str, model: str) -> None:
    async def run() -> None:
        async with VLLMPolicy([url], model) as policy:
            await policy.check_logprobs(PROMPTS[0], [STOP])

    asyncio.run(run())


def test_a_server_with_processed_logprobs_passes_the_check(vllm: SharedServer) -> None:
    check_logprobs(vllm.url, NAME)


@pytest.mark.nightly
def test_a_server_with_raw_logprobs_is_rejected(model_directory: Path, tmp_path: Path) -> None:
    """The test needs its own server, started with another `--logprobs-mode`."""
    options = ServerOptions(max_model_len=1024, arguments=("--logprobs-mode", "raw_logprobs"))
    with (
        VLLMServer(model_directory, log=tmp_path / "log", options=options) as raw,
        raises("inference.logprobs-not-processed", raw.url),
    ):
        check_logprobs(raw.url, "base")


def test_greedy_sampling_takes_the_most_likely_token(vllm: SharedServer, model: Any) -> None:
    import torch

    for prompt, completion in zip(PROMPTS, sample(vllm, Sampling(0, max_tokens=16)), strict=True):
        ids = list(prompt)
        for token in completion.ids:
            with torch.no_grad():
                assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)


def unique(prefix: str) -> str:
    """Return a name that no other test loads an adapter under."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def test_an_adapter_is_loaded_at_run_time_under_a_unique_name(attached: VLLMServer, adapter_directory: Path) -> None:
    greedy, name = Sampling(0, max_tokens=24), unique("run-1-policy-1")
    before = sample(attached, greedy)
    attached.load_adapter(name, adapter_directory)
    adapted = sample(attached, greedy, name)
    assert {each.version for each in adapted} == {name}
    assert [each.ids for each in adapted] != [each.ids for each in before]
    assert [each.ids for each in sample(attached, greedy)] == [each.ids for each in before]
    with raises("inference.adapter-name-reused", name):
        attached.load_adapter(name, adapter_directory)
    unload_adapter(attached.url, name, ServerOptions().adapter_deadline)
    with raises("inference.model-not-served", name, "404"):
        sample(attached, greedy, name)
    with raises("inference.adapter-name-reused", name):
        attached.load_adapter(name, adapter_directory)


def test_an_adapter_gives_the_same_tokens_in_vllm_peft_and_merged(attached: VLLMServer, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file, save_file
    from transformers import Qwen2ForCausalLM

    from gumshoe.training.adapters.adapter_files import create_adapter, inspect_adapter
    from gumshoe.training.adapters.merge import merge
    from gumshoe.training.settings_sources import resolve

    fast: Any = Qwen2ForCausalLM
    whole = write_hostile_tiny(tmp_path / "float32")  # the same weights in float32, so that merging does not round them
    fast.from_pretrained(whole, dtype=torch.float32).save_pretrained(whole)
    adapter, file = tmp_path / "adapter", tmp_path / "adapter" / "adapter_model.safetensors"
    adapter.mkdir()
    flags = {"model.name": str(whole), "lora.rank": 8, "lora.alpha": 8}
    create_adapter(resolve(None, flags, {}).settings, adapter)
    torch.manual_seed(2)
    weights = {
        name: torch.randn(each.shape) / 2 if "lora_B" in name else each for name, each in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})
    found = inspect_adapter(adapter, str(whole))
    assert (found.layout, found.unservable, found.served_with) == ([], [], 8)
    name = unique("made-here")
    attached.load_adapter(name, adapter)
    adapted = PeftModel.from_pretrained(fast.from_pretrained(whole), str(adapter)).eval()
    merge(adapter, None, tmp_path / "merged")
    merged = fast.from_pretrained(tmp_path / "merged").eval()
    served = sample(attached, Sampling(0, max_tokens=24), name)
    for prompt, completion, before in zip(PROMPTS, served, sample(attached, Sampling(0, max_tokens=24)), strict=True):
        assert completion.ids != before.ids
        for model in (adapted, merged):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *completion.ids]])).logits[0, len(prompt) - 1 : -1]
            assert tuple(logits.argmax(-1).tolist()) == completion.ids
    for model in (adapted, merged):
        for prompt, completion in zip(PROMPTS, sample(attached, Sampling(max_tokens=24), name), strict=True):
            expected = logprobs_of(model, prompt, completion.ids, 1.0)
            assert completion.logprobs == pytest.approx(expected, abs=2e-3)
    unload_adapter(attached.url, name, ServerOptions().adapter_deadline)


def test_a_missing_adapter_is_an_error(attached: VLLMServer, tmp_path: Path) -> None:
    with raises("inference.adapter-rejected", "run-1-policy-9"):
        attached.load_adapter("run-1-policy-9", tmp_path)
    with raises("inference.model-not-served", "run-1-policy-9", "404"):
        sample(attached, Sampling(max_tokens=4), "run-1-policy-9")

    async def check() -> None:
        async with VLLMPolicy([attached.url], "run-1-policy-9", limits=AT_ONCE) as policy:
            await policy.check(2048)

    with raises("inference.model-not-served", "'run-1-policy-9'", NAME):
        asyncio.run(check())


def test_an_unusable_request_is_an_infrastructure_error(vllm: SharedServer) -> None:
    async def run() -> None:
        async with VLLMPolicy([vllm.url], NAME) as policy:
            await policy.sample([3] * (MAX_MODEL_LEN + 1), Sampling(max_tokens=8), stop_ids=[STOP], seed=0)

    with raises("inference.request-rejected", "400"):
        asyncio.run(run())


@pytest.mark.nightly
def test_a_server_that_fails_to_start_reports_why(tmp_path: Path) -> None:
    """The test needs its own server, which ends."""
    (tmp_path / "no-model").mkdir()
    server = VLLMServer(tmp_path / "no-model", log=tmp_path / "server.log")
    with raises("inference.server-exited", tmp_path / "server.log", "no-model"), server:
        pass


@pytest.mark.nightly
def test_a_server_that_misses_its_start_deadline_is_ended(model_directory: Path, tmp_path: Path) -> None:
    """The test needs its own server, which takes longer to start than its deadline."""
    server = VLLMServer(model_directory, log=tmp_path / "server.log", options=ServerOptions(start_deadline=0.5))
    with raises("inference.server-start-timeout", "0.5 seconds"), server:
        pass
    assert not server.is_running()


@pytest.mark.nightly
def test_a_starting_server_is_stopped_at_once(model_directory: Path, tmp_path: Path) -> None:
    """The test needs its own server. vLLM ignores SIGTERM until it has started, which may take a minute."""
    log = tmp_path / "server.log"
    server = VLLMServer(model_directory, log=log, options=ServerOptions(max_model_len=256))
    before = set(descendants(os.getpid()))
    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(server.__enter__)
        try:
            # The reaper, the server, and the engine that it starts.
            wait_until(lambda: starting.done() or len(set(descendants(os.getpid())) - before) > 2)
            started = set(descendants(os.getpid())) - before
        finally:
            server.stop()
        with raises("inference.server-exited"):
            starting.result()
    assert len(started) >= 2, "the reaper, and the server"
    wait_until(lambda: not any(map(is_alive, started)))


PARENT = """
import sys, time
from pathlib import Path
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer, unload_adapter

with VLLMServer(sys.argv[1], log=Path(sys.argv[2]), options=ServerOptions(max_model_len=256)) as server:
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.nightly
def test_a_server_ends_if_its_parent_is_killed(model_directory: Path, tmp_path: Path) -> None:
    """The test needs its own server, whose parent it kills. `tests/inference/test_reaper.py` has other children."""
    arguments = [sys.executable, "-c", PARENT, str(model_directory), str(tmp_path / "server.log")]
    parent = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n", (tmp_path / "server.log").read_text()
        started = descendants(parent.pid)
        assert len(started) >= 3, "the reaper, the server, and its engine"
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    wait_until(lambda: not any(map(is_alive, started)))


def descendants(pid: int) -> list[int]:
    children = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and parent_of(int(entry.name)) == pid
    ]
    return [*children, *(each for child in children for each in descendants(child))]


def parent_of(pid: int) -> int | None:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_the_cache_size_per_token_equals_the_plan(vllm: SharedServer) -> None:
    from gumshoe.training.models.model_shape import read_shape
    from gumshoe.training.planning.memory_estimate import GIB, kv_bytes

    found = re.search(r"KV cache size: ([\d,]+) tokens", vllm.log.read_text())
    assert found is not None
    space = int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")) * GIB
    assert int(found[1].replace(",", "")) == pytest.approx(
        space / kv_bytes(read_shape(str(vllm.model)), 4, 1), rel=0.01
    )
