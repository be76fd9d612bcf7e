"""An evaluation of two real policies: the tiny policy, and a copy with noise in its weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.evaluation.results import EvaluationResult
from gumshoe.inference.policy_names import TINY
from tests.conftest import CommandResult
from tests.integration.inputs import make_mail

Run = Callable[..., CommandResult]
QUESTIONS = 30


@pytest.fixture(scope="module")
def worse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the tiny policy with noise in its weights."""
    import torch
    from transformers import Qwen2ForCausalLM

    directory = tmp_path_factory.mktemp("worse")
    model: Any = Qwen2ForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            if weight.ndim == 2:
                weight += 0.4 * weight.std() * torch.randn(weight.shape, generator=noise)
    shutil.copytree(TINY, directory, dirs_exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write synthetic mail that the policies have not seen, with an index and questions."""
    directory = make_mail(tmp_path_factory.mktemp("held-out"), 8, 12, 3600)
    lines = (directory / "scenarios.jsonl").read_text(encoding="utf-8").splitlines()[:QUESTIONS]
    asked = [json.loads(line) | {"split": "test"} for line in lines]
    (directory / "questions.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in asked), encoding="utf-8")
    return directory


@pytest.mark.nightly
@pytest.mark.timeout(600)  # both in this process, one after the other
def test_only_the_better_policy_passes_the_gate(worse: Path, held_out: Path, run: Run, tmp_path: Path) -> None:
    where = ["--index", held_out / "index", "--scenarios", held_out / "questions.jsonl", "--out", tmp_path]
    policies = ["--policy", f"worse=transformers:{worse}", "--policy", f"tiny=transformers:{TINY}"]
    ran = run("evaluate", *where, *policies, "--max-tokens", 160)
    assert ran.status == 0, ran.err
    result = EvaluationResult.model_validate_json((tmp_path / "metrics.json").read_bytes())
    assert (len(result.scenarios.ids), result.is_whole) == (QUESTIONS, True)
    assert result.comparisons[0].accuracy.low > 0
    words = ["--max-unusable", 0.1]
    passed = run("gate", "--candidate", f"{tmp_path}#tiny", "--baseline", f"{tmp_path}#worse", *words)
    assert passed.status == 0, passed.err
    refused = run("gate", "--candidate", f"{tmp_path}#worse", "--baseline", f"{tmp_path}#tiny", *words)
    assert refused.status == 3
    assert (tmp_path / "report.html").stat().st_size > 200_000
