"""Compare the seconds, tokens and memory of an optimizer step: stock TRL, whole sequences and token trees.

    python -m tests.benchmarks.optimizer_step tiny     # the tiny policy on synthetic mail: 12 groups of 8 episodes
    python -m tests.benchmarks.optimizer_step large    # a random Llama of 100 million parameters: 2 groups of 4

`tiny` samples the episodes once, with the tiny policy. Those of `large` are random tokens, 2,000 to 3,000 each: the
prompt of a group, and five turns of 40 tokens with results of 100 to 500. An episode has the first turns of its
group's first one with a chance of a half each, and then turns of its own.

Each kind of step runs in a process of its own, on the same episodes, with the loss of DAPO and without KL. Whole
sequences are padded to the longest of similar ones. Seconds are the median of the steps after the first. Tokens are
those of all forward passes of a step, with padding.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from gumshoe.environments.base import EpisodeState
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.scenario import Scenario
from tests.benchmarks.documents import show

KINDS = ("stock TRL", "whole sequences", "token trees", "token trees, no pass before the loss")
STEPS = 4
LLAMA: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 640,
    "intermediate_size": 1_728,
    "num_hidden_layers": 12,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
}


@dataclass(frozen=True)
class Workload:
    """Episodes of a step, and how many go through the model at once."""

    groups: int
    episodes: int
    at_once: int
    steps: int


WORKLOADS = {"tiny": Workload(12, 8, 8, STEPS), "large": Workload(2, 4, 2, 2)}


@dataclass(frozen=True)
class Measured:
    seconds: float
    tokens: int
    """Of a step."""
    memory: int
    """Peak of the process, in bytes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--episodes", type=Path, help="trajectories of `gumshoe rollout` for `tiny`")
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    if options.kind:
        trajectories = read_trajectories(options.episodes) if options.episodes else make_episodes(workload)
        print(json.dumps(asdict(measure(options.workload, options.kind, list(trajectories)))))
        return
    with tempfile.TemporaryDirectory(prefix="gumshoe-step-") as place:
        episodes = options.episodes
        if options.workload == "tiny" and episodes is None:
            episodes = sample_episodes(Path(place), workload)
        given = ["--episodes", str(episodes)] if episodes else []
        found = {}
        for kind in KINDS:
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.optimizer_step",
                options.workload,
                "--kind",
                kind,
                *given,
            ]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[kind] = Measured(**json.loads(printed.splitlines()[-1]))
            print(kind, found[kind], file=sys.stderr, flush=True)
    base = found["stock TRL"]
    rows = [
        [
            kind,
            f"{each.seconds:.1f} s",
            f"{base.seconds / each.seconds:.1f}",
            f"{each.tokens:,}",
            f"{base.tokens / each.tokens:.1f}",
            f"{each.memory >> 20:,} MiB",
        ]
        for kind, each in found.items()
    ]
    title = f"An optimizer step on {workload.groups} groups of {workload.episodes} episodes"
    show(title, ["", "seconds", "times faster", "tokens", "times fewer", "peak memory"], rows)


def sample_episodes(place: Path, workload: Workload) -> Path:
    """Sample episodes with the tiny policy, and return their file."""

    def run(*command: str) -> None:
        subprocess.run([sys.executable, "-m", "gumshoe", *command], check=True, stdout=subprocess.DEVNULL)

    mail, scenarios = f"jsonl:{place / 'made' / 'mail.jsonl'}", str(place / "made" / "scenarios.jsonl")
    run("synthesize", "mail", "--seed", "9001", "--difficulty", "plain", "--out", str(place / "made"))
    run("mail", "index", mail, "--out", str(place / "index"))
    shape = ["--split", "train", "--limit", str(workload.groups), "--samples", str(workload.episodes)]
    limits = ["--max-turns", "6", "--max-tokens", "120", "--seed", "1"]
    where = ["--index", str(place / "index"), "--scenarios", scenarios, "--out", str(place / "episodes.jsonl")]
    run("rollout", "--policy", "tiny", *where, *shape, *limits)
    return place / "episodes.jsonl"


def make_episodes(workload: Workload) -> list[Trajectory]:
    """Return episodes of random tokens."""
    import numpy as np

    chance, made = np.random.default_rng(1), []

    def draw(count: int) -> tuple[int, ...]:
        return tuple(chance.integers(10, LLAMA["vocab_size"], count).tolist())

    def turn() -> list[Span]:
        return [
            Span("sampled", "", draw(40), (-10.0,) * 40),
            Span("injected", "", draw(int(chance.integers(100, 500)))),
        ]

    instructions = draw(900)
    for group in range(workload.groups):
        prompt, first = Span("prompt", "", (*instructions, *draw(60))), [turn() for _ in range(5)]
        for sample in range(workload.episodes):
            shared = sum(chance.random(5).cumsum() < 0.5) if sample else 5
            turns = first[:shared] + [turn() for _ in range(5 - shared)]
            spans = [prompt, *(span for each in turns for span in each)][:-1]
            made.append(Trajectory(str(group), sample, "", "answer", "", spans, EpisodeState(), 5, 0.0, 0.0))
    return made


def measure(name: str, kind: str, trajectories: Sequence[Trajectory]) -> Measured:
    """Train on the episodes, and return what a step takes."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from gumshoe.inference.policy_names import TINY, load_tokenizer
    from gumshoe.training.algorithms.lookup import find_algorithm
    from gumshoe.training.grpo.rollout_collector import RolloutBatch, ScoredGroup
    from gumshoe.training.grpo.trainer import AgentTrainer, Hooks
    from gumshoe.training.models.lora_model import lora_config
    from gumshoe.training.settings_sections import LoraSettings

    workload, seconds, tokens = WORKLOADS[name], list[float](), list[int]()
    batch = RolloutBatch(workload.groups)
    for start in range(0, len(trajectories), workload.episodes):
        group = tuple(trajectories[start : start + workload.episodes])
        rewards = tuple(float(each % 2) for each in range(len(group)))
        batch.groups.append(ScoredGroup(_scenario(), group, rewards, ((),) * len(group)))
    batch.scored = list(batch.groups)

    class Trees(AgentTrainer):
        _checks_in_loss = False

    class Whole(Trees):
        _tree_reader = None

    class Stock(Whole):
        def _get_per_token_logps_and_entropies(self, *given: Any, **more: Any) -> Any:
            return GRPOTrainer._get_per_token_logps_and_entropies(self, *given, **more)

        def _arrange(self, passes: Any) -> Any:
            return passes

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter())
            tokens.append(0)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds[-1] = time.perf_counter() - seconds[-1]

    torch.manual_seed(0)
    random: Any = LlamaForCausalLM
    tiny = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    model = tiny if name == "tiny" else random(LlamaConfig(**LLAMA))
    made = dict(zip(KINDS, (Stock, Whole, Trees, AgentTrainer), strict=True))[kind]
    with tempfile.TemporaryDirectory(prefix="gumshoe-step-") as place:
        trainer: Any = made(
            Hooks(lambda _: batch, find_algorithm("dapo", {}), lambda: None, 1e9),
            model=model,
            args=GRPOConfig(
                output_dir=place,
                per_device_train_batch_size=workload.at_once,
                gradient_accumulation_steps=workload.groups * workload.episodes // workload.at_once,
                num_generations=workload.episodes,
                max_completion_length=8192,
                max_steps=workload.steps,
                beta=0.0,
                vllm_importance_sampling_mode="token_truncate",
                gradient_checkpointing=False,
                use_cpu=True,
                bf16=False,
                report_to="none",
                disable_tqdm=True,
                save_strategy="no",
                dataloader_pin_memory=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": [str(each) for each in range(workload.groups)]}),
            processing_class=load_tokenizer(str(TINY)),
            peft_config=lora_config(LoraSettings(), model),
            callbacks=[Clock()],
        )

        def count(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            tokens[-1] += (named["input_ids"] if "input_ids" in named else given[0]).numel()

        trainer.accelerator.unwrap_model(trainer.model).get_base_model().get_decoder().register_forward_pre_hook(
            count, with_kwargs=True
        )
        trainer.train()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Measured(statistics.median(seconds[1:]), tokens[-1], peak)


def _scenario() -> Scenario:
    return Scenario(
        id="1",
        question="Q?",
        answer="A",
        message_ids=("<1@x.example>",),
        inbox_address="a@x.example",
        query_date=date(2024, 1, 1),
    )


if __name__ == "__main__":
    main()
