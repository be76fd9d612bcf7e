"""Write inputs of integration tests: synthetic mail with its index, and adapters of the tiny policy."""

import shutil
from pathlib import Path
from typing import Any

from gumshoe.inference.policy_names import TINY
from gumshoe.mail.build import build_mail_index
from gumshoe.synthesis.difficulty import Level
from gumshoe.synthesis.mailboxes import synthesize_mail, write_mail


def make_mail(directory: Path, seed: int, mailboxes: int, messages: int, level: Level = "normal") -> Path:
    """Write `mail.jsonl`, `scenarios.jsonl` and `index` of a synthetic company, and return their directory."""
    write_mail(synthesize_mail(seed, mailboxes, messages, level), directory)
    build_mail_index([f"jsonl:{directory / 'mail.jsonl'}"], directory / "index")
    return directory


def write_adapter(directory: Path, seed: int) -> Path:
    """Write an adapter with its tokenizer, which changes nothing yet, and return its directory."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(TINY, local_files_only=True)
    torch.manual_seed(seed)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    adapted.save_pretrained(str(directory))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, directory)
    return directory
