"""Measure the memory of training, and compare it with `gumshoe plan`: `python -m tests.benchmarks.memory`.

Models with random weights, of several shapes, each make two optimizer steps in a process of their own with our trainer
(`AgentTrainer`: the passes, loss, gradient and optimizer of a real run) on episodes of a given length; or they run two
turns of concurrent episodes. The measured number is the peak memory (VmHWM) after the model was loaded, minus the
memory after the same work with a very small model (VmRSS), when all libraries are loaded. malloc is set to return freed
memory at once, so that only memory in use is measured. No GPU is needed. With `--gpu`, larger models are trained on
a GPU, and its memory in use is compared.

Takes some minutes and at most 7 GiB. Exits with 1 if an estimate is more than 15 % off. `--write` saves the numbers for
`tests/training/test_memory_plan.py`.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gumshoe.training.models.model_shape import ModelShape, read_shape
from gumshoe.training.planning.memory_estimate import (
    GIB,
    TURN_TOKENS,
    ComputeDevice,
    TrainingPass,
    sampling_parts,
    trainer_parts,
)
from gumshoe.training.settings import TrainSettings
from tests.benchmarks.mail import show

RECORD = Path(__file__).parents[1] / "training" / "measured_memory.json"
MOST_OFF = 0.15
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes")
_PROMPT = 64  # tokens
_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 128,
    "vocab_size": 300,
}
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and its training."""

    name: str
    model: dict[str, Any]
    """Fields of config.json."""
    context: int
    """Number of tokens of the longest episode."""
    sampled: int
    """Number of tokens of each episode that are trained on."""
    settings: dict[str, Any] = field(default_factory=dict)
    at_once: int = 0
    """Number of concurrent episodes to sample, instead of training."""

    def config(self) -> dict[str, Any]:
        """Return the content of config.json."""
        llama = self.model.get("model_type") == "llama"
        architecture = "LlamaForCausalLM" if llama else "Qwen2ForCausalLM"
        return {"model_type": "qwen2", "architectures": [architecture], "max_position_embeddings": 8192, **self.model}

    def train_settings(self, model: Path) -> TrainSettings:
        settings = TrainSettings.model_validate(self.settings)
        return settings.model_copy(
            update={"model": settings.model.model_copy(update={"name": str(model), "max_context": self.context})}
        )


def case(
    name: str, model: Mapping[str, Any], context: int, sampled: int, batch: int, *, rank: int = 16, **settings: Any
) -> Case:
    return Case(
        name,
        dict(model),
        context,
        sampled,
        {
            "model": settings,
            "lora": {"rank": rank},
            "optimizer": {"per_device_train_batch_size": batch, "gradient_accumulation_steps": max(1, 2 // batch)},
            "rollouts": {"num_generations": 2},
        },
    )


def _shape(hidden: int, layers: int, heads: int, kv: int, inner: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        **more,
    }


CASES = (
    case("wide, kept", _shape(768, 6, 12, 12, 2048, 8000), 1024, 300, 2, gradient_checkpointing=False),
    case("deep, kept", _shape(384, 12, 6, 2, 1024, 4000), 1024, 300, 4, rank=64, gradient_checkpointing=False),
    case("long, kept", _shape(256, 4, 4, 4, 704, 2000), 4096, 500, 1, gradient_checkpointing=False),
    case("many words, kept", _shape(384, 4, 6, 6, 1024, 32000), 1024, 900, 2, rank=8, gradient_checkpointing=False),
    case("wide, recomputed", _shape(1024, 4, 16, 4, 2816, 1000), 1024, 300, 4),
    case("long, recomputed", _shape(512, 8, 8, 2, 1408, 1000, model_type="llama"), 4096, 500, 1),
    case("many words, recomputed", _shape(512, 6, 8, 8, 1408, 32000), 1024, 300, 2, rank=32),
    case("16 bits, recomputed", _shape(1024, 3, 16, 4, 2816, 1000), 2048, 300, 1, rank=64, dtype="bfloat16"),
    case(
        "16 bits, kept", _shape(512, 6, 8, 4, 1408, 4000), 1024, 300, 2, dtype="bfloat16", gradient_checkpointing=False
    ),
    case("nf4, recomputed", _shape(768, 2, 12, 4, 4096, 1000), 1024, 300, 2, dtype="bfloat16", quantization="nf4"),
    Case("8 episodes", _shape(512, 12, 8, 8, 1408, 4000), 2048, 16, {"rollouts": {"concurrency": 8}}, 8),
    Case("16 episodes", _shape(768, 8, 12, 2, 2048, 8000), 3072, 16, {"rollouts": {"concurrency": 16}}, 16),
)

_QWEN_1_5B = _shape(1536, 28, 12, 2, 8960, 151936, tie_word_embeddings=True)
_QWEN_7B = _shape(3584, 28, 28, 4, 18944, 152064)
GPU_CASES = (
    case("1.5B, 2 of 4,096, recomputed", _QWEN_1_5B, 4096, 1000, 2, dtype="bfloat16"),
    case("1.5B, 2 of 4,096, kept", _QWEN_1_5B, 4096, 1000, 2, dtype="bfloat16", gradient_checkpointing=False),
    case("7B, 1 of 8,192, recomputed", _QWEN_7B, 8192, 1500, 1, dtype="bfloat16"),
    case("7B, 4 of 4,096, recomputed", _QWEN_7B, 4096, 1500, 4, dtype="bfloat16"),
)


def estimate(case: Case, shape: ModelShape, settings: TrainSettings, *, on_gpu: bool = False) -> dict[str, int]:
    """Return the estimated bytes by part; on a CPU, without `framework`, which is measured as the baseline."""
    place, batch = ComputeDevice.of(settings, on_gpu=on_gpu), settings.optimizer.per_device_train_batch_size
    parts = trainer_parts(shape, settings, place, TrainingPass(batch, case.context, case.sampled))
    if case.at_once:
        own = [each for each in parts if each.name in ("weights", "adapter")]
        parts = [*own, *sampling_parts(shape, settings, place, case.context)]
    return {each.name: each.bytes for each in parts if on_gpu or each.name != "framework"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"save the numbers to {RECORD.name}")
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases whose name contains TEXT")
    parser.add_argument("--gpu", action="store_true", help="measure larger models on a GPU")
    parser.add_argument("--measure", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        work = _measure_gpu if options.gpu else _measure_cpu
        print(json.dumps(work(options.measure)))
        return
    found = []
    for each in GPU_CASES if options.gpu else CASES:
        if options.only in each.name:
            found.append(measure_case(each, on_gpu=options.gpu))
            if options.write and not options.gpu:
                _save_record(found)
            print(f"{each.name}: {found[-1]['measured'] / GIB:.2f} GiB", file=sys.stderr, flush=True)
    rows = [
        [each["name"], f"{each['measured'] / GIB:.2f}", f"{each['estimate'] / GIB:.2f}", f"{each['off']:+.1%}"]
        for each in found
    ]
    show(
        f"Memory of training, on a {'GPU' if options.gpu else 'CPU'}",
        ["", "measured, GiB", "estimate, GiB", "difference"],
        rows,
    )
    sys.exit(any(abs(each["off"]) > MOST_OFF for each in found))


def _save_record(found: list[dict[str, Any]]) -> None:
    """Save numbers, and keep those of other cases if they were measured with the same package versions."""
    versions = {name: version(name) for name in PACKAGES}
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    every = {each["name"]: each for each in before.get("cases", ()) if before["versions"] == versions}
    estimated = ("estimate", "parts", "off")  # computed again by the tests
    every |= {each["name"]: {key: each[key] for key in each if key not in estimated} for each in found}
    record = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, no GPU",
        "versions": versions,
        "cases": [every[each.name] for each in CASES if each.name in every],
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def measure_case(case: Case, *, on_gpu: bool = False) -> dict[str, Any]:
    """Measure a case in a new process, and return the numbers with the estimate."""
    with tempfile.TemporaryDirectory(prefix="gumshoe-memory-") as directory:
        model = Path(directory)
        (model / "config.json").write_text(json.dumps(case.config()))
        (model / "case.json").write_text(json.dumps(asdict(case)))
        settings = case.train_settings(model)
        parts = estimate(case, read_shape(str(model)), settings, on_gpu=on_gpu)
        ran = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.memory", "--measure", directory, *["--gpu"] * on_gpu],
            env={**os.environ, **_MALLOC, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdout=subprocess.PIPE,
            check=True,
        )
    numbers = json.loads(ran.stdout.splitlines()[-1])
    total = sum(parts.values())
    return {
        **asdict(case),
        **numbers,
        "estimate": total,
        "parts": parts,
        "off": total / numbers["measured"] - 1,
    }


def _measure_cpu(directory: Path) -> dict[str, int]:
    """Run a case in this process, and return the baseline and the peak above it, in bytes."""
    case = Case(**json.loads((directory / "case.json").read_text()))
    work = _sample if case.at_once else _train
    small = replace(
        case, model={**case.model, **_SMALL}, context=TURN_TOKENS + 160 if case.at_once else 160, sampled=16
    )
    with tempfile.TemporaryDirectory(prefix="gumshoe-memory-") as first:
        (Path(first) / "config.json").write_text(json.dumps(small.config()))
        _save_model(Path(first), small)
        work(small, Path(first))
    _save_model(directory, case)
    gc.collect()
    before = _status("VmRSS")
    work(case, directory)
    return {"baseline": before, "measured": _status("VmHWM") - before}


def _measure_gpu(directory: Path) -> dict[str, int]:
    """Make two steps on the GPU, and return the bytes in use on it afterwards, as freed blocks stay reserved."""
    import torch

    case = Case(**json.loads((directory / "case.json").read_text()))
    _save_model(directory, case, "cuda")
    _train(case, directory, on_gpu=True)
    free, total = torch.cuda.mem_get_info()
    return {"measured": total - free}


def _load_model(settings: TrainSettings) -> Any:
    """Load the base model, copy its weights out of the mapped file, and reset the peak memory."""
    import torch

    from gumshoe.training.models.lora_model import load_base

    model = load_base(settings)
    for each in model.parameters():
        if each.dtype != torch.uint8:  # nf4 has copied these already
            each.data = each.data.clone()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    return model


def _save_model(directory: Path, case: Case, device: str = "cpu") -> None:
    """Save a random model in a process of its own, so that its memory is not counted here."""
    code = (
        "import sys, torch; from transformers import AutoConfig, AutoModelForCausalLM; torch.manual_seed(1);"
        "torch.set_default_device(sys.argv[3]);"
        "AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1])).to(getattr(torch, sys.argv[2]))"
        ".save_pretrained(sys.argv[1])"
    )
    dtype = case.settings.get("model", {}).get("dtype", "float32")
    subprocess.run([sys.executable, "-c", code, str(directory), dtype, device], check=True, stdout=subprocess.DEVNULL)


def _train(case: Case, directory: Path, *, on_gpu: bool = False) -> None:
    """Build the trainer, and make two steps."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig

    from gumshoe.tiny.maker import train_tokenizer
    from gumshoe.training.grpo.rollout_collector import RolloutBatch, ScoredGroup
    from gumshoe.training.grpo.trainer import AgentTrainer, Hooks
    from gumshoe.training.models.lora_model import dtype_of, lora_config, prepare_for_training
    from tests.training.test_trainer import SCENARIO

    settings = case.train_settings(directory)
    tokenizer = train_tokenizer(["the quick brown fox, 1234 <b>"], 300)
    generations, optimizer = settings.rollouts.num_generations, settings.optimizer

    def roll_out(_: int) -> RolloutBatch:
        found = RolloutBatch(settings.groups)
        for group in range(settings.groups):
            members = tuple(_episodes(case, generations, group))
            found.groups.append(ScoredGroup(SCENARIO, members, tuple(float(each) for each in range(generations))))
        found.scored = list(found.groups)
        return found

    arguments = GRPOConfig(
        output_dir=str(directory / "out"),
        per_device_train_batch_size=optimizer.per_device_train_batch_size,
        gradient_accumulation_steps=optimizer.gradient_accumulation_steps,
        num_generations=generations,
        max_completion_length=case.context,
        max_steps=2,
        beta=optimizer.beta,
        use_bias_correction_kl=True,
        vllm_importance_sampling_mode="token_truncate",
        gradient_checkpointing=settings.model.gradient_checkpointing,
        bf16=dtype_of(settings.model) is torch.bfloat16,
        use_cpu=not on_gpu,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = _load_model(settings)
    trainer: Any = AgentTrainer(
        Hooks(roll_out, optimizer.algorithm.load(), lambda: None, most_difference=1e9),
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(each) for each in range(settings.groups)]}),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora, model),
    )
    prepare_for_training(trainer.model, settings.lora)
    trainer.train()


def _sample(case: Case, directory: Path) -> None:
    """Sample a turn of every episode, and then one after a tool result that fills the context."""
    from peft import get_peft_model

    from gumshoe.inference.generation import sample_turns
    from gumshoe.inference.policy import Sampling
    from gumshoe.inference.turn_batch import PendingTurn
    from gumshoe.training.models.lora_model import lora_config

    settings = case.train_settings(directory)
    base = _load_model(settings)
    model: Any = get_peft_model(base, lora_config(settings.lora, base)).eval()
    at, once = Sampling(max_tokens=case.sampled), range(case.at_once)
    first = case.context - TURN_TOKENS - 2 * case.sampled
    turns = [PendingTurn([10 + (each + place) % 200 for place in range(first)], at, (), each, None) for each in once]
    sample_turns(model, turns)
    more = list(range(10, 10 + 64)) * (TURN_TOKENS // 64)
    again = [PendingTurn([*each.prompt, *each.ids, *more], at, (), each.seed, each.past) for each in turns]
    del turns
    sample_turns(model, again)


def _episodes(case: Case, count: int, group: int) -> Iterator[Any]:
    """Yield episodes of different lengths, the last one with the full context, with sampled tokens at the end."""
    from gumshoe.environments.base import EpisodeState
    from gumshoe.rollouts.trajectory import Span, Trajectory

    most = min(case.model["vocab_size"], 256)
    for number in range(count):
        length = case.context - 16 * (count - 1 - number) - _PROMPT
        ids = [10 + 7 * place % (most - 10) for place in range(_PROMPT)]
        ids[-8:] = [11 + group] * 8  # prompts have a common prefix, and end differently
        rest = [10 + (5 * place + number) % (most - 10) for place in range(length)]
        given, sampled = rest[: length - case.sampled], rest[length - case.sampled :]
        parts = [("prompt", ids), ("sampled", sampled[:8]), ("injected", given), ("sampled", sampled[8:])]
        spans = [
            Span(origin, "", tuple(each), (-5.0,) * len(each) if origin == "sampled" else ())  # type: ignore[arg-type]
            for origin, each in parts
        ]
        yield Trajectory("1", number, "policy", "answer", "", spans, EpisodeState(), 2, 0.0, 0.0)


def _status(name: str) -> int:
    """Return a value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
