"""Two policies measured against each other for real: the tiny one, and one of it that has learned a little more."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from gumshoe.agent.policies import TINY, load_tokenizer
from gumshoe.evaluation.results import EvaluationResult
from gumshoe.mail.build import build_index
from gumshoe.synthesis.mail import synthesize_mail, write_mail
from gumshoe.training.practice import Company, Practice
from gumshoe.training.warm_start import WarmStart, warm_start
from tests.conftest import Ran

Run = Callable[..., Ran]
QUESTIONS = 120


@pytest.fixture(scope="module")
def better(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny policy after some steps with an expert that does nothing wrong."""
    directory = tmp_path_factory.mktemp("better")
    practice = Practice(load_tokenizer(TINY), 5, habits={})
    company = Company.invent(2_000_000, "normal", tmp_path_factory.mktemp("company"), mailboxes=6, messages=1800)
    examples = [lesson.example for lesson in practice.lessons(company) if len(lesson.example.ids) <= 4096]
    model: Any = Qwen2ForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    warm_start(model, examples, WarmStart(60, batch_tokens=4096, learning_rate=5e-4, seed=1))
    shutil.copytree(TINY, directory, dirs_exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Invented mail that neither has seen, with an index, and questions about it."""
    directory = tmp_path_factory.mktemp("held-out")
    write_mail(synthesize_mail(8, 12, 3600), directory)
    build_index([f"jsonl:{directory / 'mail.jsonl'}"], directory / "index")
    lines = (directory / "scenarios.jsonl").read_text(encoding="utf-8").splitlines()[:QUESTIONS]
    asked = [json.loads(line) | {"split": "test"} for line in lines]
    (directory / "questions.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in asked), encoding="utf-8")
    return directory


@pytest.mark.timeout(900)  # both in this process, one after the other
def test_a_better_policy_is_told_apart_and_passes_the_gate(
    better: Path, held_out: Path, run: Run, tmp_path: Path
) -> None:
    where = ["--index", held_out / "index", "--scenarios", held_out / "questions.jsonl", "--out", tmp_path]
    policies = ["--policy", f"tiny=transformers:{TINY}", "--policy", f"better=transformers:{better}"]
    ran = run("evaluate", *where, *policies, "--max-tokens", 160)
    assert ran.status == 0, ran.err
    result = EvaluationResult.model_validate_json((tmp_path / "metrics.json").read_bytes())
    assert (len(result.scenarios.ids), result.is_whole) == (QUESTIONS, True)
    gain = result.comparisons[0].accuracy
    assert gain.low > 0
    passed = run("gate", "--candidate", f"{tmp_path}#better", "--baseline", f"{tmp_path}#tiny", "--max-unusable", 0.05)
    assert passed.status == 0, passed.err
    refused = run("gate", "--candidate", f"{tmp_path}#tiny", "--baseline", f"{tmp_path}#better")
    assert refused.status == 3
    assert (tmp_path / "report.html").stat().st_size > 500_000
