"""Rollouts with a real model: with a vLLM server, in this process, and with a server that is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from gumshoe.environments.base import Ending
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import read_trajectories
from tests.conftest import CommandResult, find_free_port
from tests.integration.test_vllm import STOP, descendants
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import question, write_questions
from tests.shared_server import NAME, SharedServer
from tests.waiting import wait_until

pytestmark = pytest.mark.ci

COUNT, SAMPLES, MAX_TOKENS = 12, 2, 40
HOT = 2  # temperature: at 1 the tiny policy repeats itself


@dataclass(frozen=True)
class Place:
    """Inputs of rollouts: an index, and scenarios about it."""

    index: Path
    scenarios: str


def make_place(directory: Path, count: int) -> Place:
    index = make_index(directory, map(record, range(1, count + 9))).path.parent
    return Place(index, write_questions(directory / "q.jsonl", map(question, range(1, count + 1))))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("mail"), COUNT)


def options(place: Place, policy: str, tokenizer: Path, out: Path, **changes: object) -> list[object]:
    given = {"--index": place.index, "--scenarios": place.scenarios, "--policy": policy, "--tokenizer": tokenizer}
    given |= {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return ["rollout", *(part for item in given.items() for part in item), "--out", out, "--json"]


def check_groups(found: list[Trajectory], report: dict[str, Any], count: int, samples: int) -> None:
    """Check that every group is complete and occurs once, and that the report matches the file."""
    expected = [(f"q{number}", sample) for number in range(1, count + 1) for sample in range(samples)]
    assert sorted((each.scenario, each.sample) for each in found) == sorted(expected)
    endings = [each.ending for each in found]
    assert set(endings) <= set(get_args(Ending))
    assert report["endings"] == {ending: endings.count(ending) for ending in set(endings)}
    counts = {name: report[name] for name in ("done", "already_there", "dropped", "causes", "dropped_groups")}
    assert counts == {"done": count * samples, "already_there": 0, "dropped": 0, "causes": {}, "dropped_groups": {}}


def check_tokens(each: Trajectory, chat: ChatFormat, max_tokens: int) -> None:
    """Check that a trajectory consists of the ids that were seen and sampled, with matching texts."""
    assert Trajectory.from_json(each.to_json(), "here") == each
    assert [span.origin for span in each.spans[:2]] == ["prompt", "sampled"]
    assert len(each.spans) == 2 * each.turns > 0
    for span in each.spans:
        assert span.text == chat.decode(span.ids)
        if span.origin == "sampled":
            assert len(span.logprobs) == len(span.ids) <= max_tokens
            assert all(logprob <= 0 for logprob in span.logprobs)
            assert not set(span.ids[:-1]) & set(chat.stop_ids)
    prompt = each.spans[0].text
    assert f"What does message {each.scenario[1:]} say?<|im_end|>" in prompt
    assert prompt.endswith("<|im_start|>assistant\n")
    assert sum(each.mask) == each.sampled_tokens
    assert len(each.mask) == len(each.ids) == each.prompt_tokens + each.sampled_tokens


@pytest.mark.parametrize("kind", ["vllm", "transformers"])
def test_a_rollout_with_a_real_model_is_complete_and_token_exact(
    kind: str,
    vllm: SharedServer,
    model_directory: Path,
    place: Place,
    tmp_path: Path,
    run: Callable[..., CommandResult],
) -> None:
    out = tmp_path / "t.jsonl"
    policy = vllm.policy if kind == "vllm" else f"transformers:{model_directory}"
    limits = {"samples": SAMPLES, "max_tokens": MAX_TOKENS, "max_context": 1024, "temperature": HOT}
    ran = run(*options(place, policy, model_directory, out, **limits))
    assert ran.status == 0, ran.err
    found = list(read_trajectories(out))
    check_groups(found, json.loads(ran.out), COUNT, SAMPLES)
    chat = ChatFormat(load_tokenizer(model_directory))
    for each in found:
        check_tokens(each, chat, MAX_TOKENS)
    assert {each.policy for each in found} == {NAME if kind == "vllm" else str(model_directory)}
    distinct = len({tuple(each.ids) for each in found})
    # Requests to vLLM have no seed, so two of its samples may be equal by chance: one pair in eight runs.
    assert distinct == COUNT * SAMPLES if kind == "transformers" else distinct >= COUNT * SAMPLES - 3
    fields = {name for line in out.read_text().splitlines() for name in json.loads(line)}
    assert fields == set(Trajectory.__slots__)


def test_a_tokenizer_of_another_model_is_rejected(
    vllm: SharedServer, model_directory: Path, place: Place, tmp_path: Path, run: Callable[..., CommandResult]
) -> None:
    """Two of its tokens are swapped."""
    other, out = tmp_path / "other", tmp_path / "t.jsonl"
    other.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (other / name).write_text((model_directory / name).read_text())
    fields = json.loads((other / "tokenizer.json").read_text())
    words = fields["model"]["vocab"]
    words["1"], words["2"] = words["2"], words["1"]
    (other / "tokenizer.json").write_text(json.dumps(fields))
    ran = run(*options(place, vllm.policy, other, out, max_context=1024))
    assert (ran.status, ran.code, out.exists()) == (2, "inference.tokenizer-mismatch", False)
    assert vllm.url in ran.err


def metrics(url: str, *names: str) -> float:
    """Return the sum of some of vLLM's metrics at one time."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    return sum(float(line.split()[-1]) for line in re.findall(rf"^(?:{'|'.join(names)}){{.*$", text, re.M))


def started_requests(url: str) -> float:
    """Return the number of requests that a server has started to answer, including those that have ended."""
    return metrics(url, "vllm:num_requests_running", "vllm:request_success_total")


def kill_new_processes(before: set[int]) -> None:
    """Kill the server with its reaper, as can happen if memory runs out."""
    groups = {os.getpgid(pid) for pid in set(descendants(os.getpid())) - before} - {os.getpgrp()}
    assert groups
    for group in groups:
        os.killpg(group, signal.SIGKILL)


@pytest.fixture(scope="module")
def endless_model(model: Any, model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model that never ends a turn: the tied embedding of its stop token is 0, below all other logits."""
    import torch

    directory = tmp_path_factory.mktemp("endless_model") / "model"
    shutil.copytree(model_directory, directory)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        weights["model.embed_tokens.weight"][STOP] = 0
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.save_pretrained(directory, state_dict=weights)
    return directory


@pytest.mark.nightly
def test_a_restarted_vllm_server_costs_no_group(endless_model: Path, tmp_path: Path) -> None:
    """The test needs its own servers, to kill the first."""
    count, samples, long = 16, 4, 500
    place, out = make_place(tmp_path / "mail", count), tmp_path / "t.jsonl"
    server_options = ServerOptions(max_model_len=2048, port=find_free_port())
    before = set(descendants(os.getpid()))
    limits = {"samples": samples, "max_tokens": long, "max_context": 2048}
    log = tmp_path / "rollout.log"
    with (
        VLLMServer(endless_model, log=tmp_path / "first.log", options=server_options) as first,
        log.open("wb") as errors,
    ):
        command = options(place, f"vllm:{first.url}", endless_model, out, **limits)
        arguments = [sys.executable, "-m", "gumshoe", *map(str, command)]
        pipe, new_session = subprocess.PIPE, True
        rollout = subprocess.Popen(arguments, stdout=pipe, stderr=errors, text=True, start_new_session=new_session)
        checks = 1  # of the server's log-probabilities, before all turns
        wait_until(lambda: started_requests(first.url) == checks + count * samples, rollout)
        before.add(rollout.pid)
        kill_new_processes(before)
    try:
        assert out.read_bytes().count(b"\n") < count * samples
        wait_until(lambda: "120 seconds" in log.read_text(), rollout)
        with VLLMServer(endless_model, log=tmp_path / "second.log", options=server_options) as second:
            printed, _ = rollout.communicate()
            again = metrics(second.url, "vllm:request_success_total")
    finally:
        rollout.kill()
        rollout.wait()
    assert rollout.returncode == 0, log.read_text()
    assert again >= count * samples / 2, "finished episodes are not run again"
    found = list(read_trajectories(out))
    check_groups(found, json.loads(printed), count, samples)
    chat = ChatFormat(load_tokenizer(endless_model))
    for each in found:
        check_tokens(each, chat, long)
