"""Completion in shells, through the protocol that the installed scripts use."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gumshoe import completion
from gumshoe.error_codes import load_error_codes
from gumshoe.inference.policy_names import PolicyName
from gumshoe.scenarios.scenario import SPLITS
from tests.conftest import CommandResult

Run = Callable[..., CommandResult]
Complete = Callable[..., list[str]]


@pytest.fixture
def complete(run: Run, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return a function that completes the last of some words."""

    def typed(*words: str) -> list[str]:
        monkeypatch.setenv("_GUMSHOE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["gumshoe", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return run().out.split()

    return typed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("eva",), ["evaluate"]),
        (("mail", "s"), ["search", "stats"]),
        (("rollout", "--environment", "e"), ["email"]),
        (("rollout", "--policy", "t"), ["tiny", "transformers:"]),
        (("evaluate", "--policy", "c"), ["chat:"]),
        (("evaluate", "--split", ""), ["test", "validation", "train", "all"]),
        (("evaluate", "--judge", "e"), ["exact", "embedding:"]),
        (("evaluate", "--choose-by", "r"), ["ruler:"]),
        (("train", "--config", "t"), ["tiny"]),
        (("train", "--set", "optimizer.learn"), ["optimizer.learning_rate="]),
        (("plan", "--gpu", "h2"), ["h200"]),
        (("doctor", "--only", "q"), ["quota", "queue"]),
        (("pipeline", "run", "tr"), ["train-agent"]),
        (("pipeline", "run", "train-agent", "-p", "dem"), ["demonstrations="]),
        (("pipeline", "run", "train-agent", "-p", "see"), ["seed="]),
        (("explain", "cli.us"), ["cli.usage"]),
        (("mail", "index", "m"), ["maildir:", "mbox:"]),
        (("synthesize", "mail", "--difficulty", "p"), ["plain"]),
        (("train", "--scenarios", "q"), []),  # the shell completes files
        (("train", "--index", ""), []),
    ],
)
def test_words_are_completed(complete: Complete, words: tuple[str, ...], expected: list[str]) -> None:
    assert complete(*words) == expected


def test_artifacts_of_a_store_on_this_machine_are_completed(
    complete: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("adapters/v1", "adapters/v2", "runs/r1/reports/v1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "manifest.json").touch()
    shown = complete("artifacts", "show", "--store", str(tmp_path), "a")
    assert shown == ["adapters/latest", "adapters/v1", "adapters/v2"]
    monkeypatch.setenv("GUMSHOE_STORE", f"file://{tmp_path}")
    assert complete("artifacts", "list", "") == ["adapters", "runs/r1/reports"]
    monkeypatch.setenv("GUMSHOE_STORE", "s3://bucket/project")
    assert complete("artifacts", "list", "") == []


def test_known_words_are_those_that_commands_accept() -> None:
    assert tuple(name for name, _ in completion.complete_split()) == SPLITS
    for word, _ in completion.complete_policy():
        PolicyName.parse(word if word == "tiny" else f"{word}http://127.0.0.1:8000")
    from gumshoe.rewards.judge_registry import parse_judge

    for word, _ in completion.complete_judge():
        parse_judge(word if word[-1] != ":" else f"{word}model")


def test_all_error_codes_are_completed(complete: Complete) -> None:
    assert complete("explain", "") == list(load_error_codes())


def test_completion_imports_neither_torch_nor_kfp() -> None:
    code = (
        "import os, sys\n"
        "from gumshoe.cli import main\n"
        "for words in (['train', '--set', 'opt'], ['pipeline', 'run', 'train-agent', '-p', 's']):\n"
        "    os.environ |= {'_GUMSHOE_COMPLETE': 'complete_bash', 'COMP_CWORD': str(len(words))}\n"
        "    os.environ['COMP_WORDS'] = '\\n'.join(['gumshoe', *words])\n"
        "    try: main([])\n"
        "    except SystemExit as end: assert not end.code\n"
        "print(sorted({'torch', 'kfp', 'vllm', 'datasets'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *words, heavy = ran.stdout.splitlines()
    assert "optimizer.max_steps=" in words
    assert "seed=" in words
    assert heavy == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown_for_each_shell(run: Run, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GUMSHOE_COMPLETE", f"source_{shell}")
    assert "_GUMSHOE_COMPLETE" in run().out
