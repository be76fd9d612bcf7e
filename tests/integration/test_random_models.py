"""Random models of several architectures: two steps of `gumshoe train` with rollouts on a real vLLM server."""

import shutil
from pathlib import Path

import pytest

from gumshoe.inference.policy_names import TINY, load_tokenizer
from gumshoe.inference.vllm_server import is_vllm_installed
from tests.architectures import make_model
from tests.conftest import skip_missing
from tests.integration.trainings import command, is_changed, steps_of, train

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("name", ["qwen3", "llama", "mistral", "gemma3", "granite", "olmo3"])
def test_two_steps_are_trained_through_vllm(name: str, training_mail: Path, tmp_path: Path) -> None:
    """The rewards are the numbers of the episodes, so that random models have something to learn.

    vLLM's CPU build does not run mixtures of experts, Qwen3.5 and LFM2, and computes other probabilities for Cohere 2,
    whose episodes training therefore rejects.
    """
    if not is_vllm_installed():
        skip_missing("vLLM")
    place, out = tmp_path / "model", tmp_path / "run"
    vocabulary = len(load_tokenizer(TINY))
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    make_model(name, vocab_size=vocabulary, max_position_embeddings=4096, **sizes).save_pretrained(place)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / file, place / file)
    settings = {
        "rewards__functions": "[{name: tests.rewards.own_rewards:slow}]",
        "optimizer__max_steps": 2,
        "model__max_context": 4096,
        "rollouts__max_tokens": 32,
        "evaluation__baseline": False,
    }
    words = command(training_mail, out, "--model", str(place), "--engine", "vllm", **settings)
    train(words, tmp_path / "log")
    steps = steps_of(out)
    assert [each.step for each in steps] == [1, 2]
    for step in steps:
        assert (step.groups, step.groups_refused) == (step.groups_wanted, 0)
        assert step.logprob_difference < 1e-3, "in nats per token"
    assert is_changed(out / "final")
