"""Write a small cross-encoder with random weights: its scores differ by text, and mean nothing."""

from importlib import import_module
from pathlib import Path
from typing import Any

MAX_TOKENS = 512
"""Maximum number of tokens of a query and a text together."""
_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "vitamin", "gout", "c"]
_SIZE = 32  # of the layer: vLLM needs heads of at least 32


def write_cross_encoder(directory: Path) -> Path:
    """Write the model into a new directory below this one, and return its path."""
    models: Any = import_module("transformers")
    models.set_seed(1)
    (directory / "vocab.txt").write_text("\n".join(_WORDS))
    config = models.BertConfig(
        vocab_size=len(_WORDS),
        hidden_size=_SIZE,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=_SIZE,
        num_labels=1,
        max_position_embeddings=MAX_TOKENS,
    )
    models.BertForSequenceClassification(config).save_pretrained(directory / "model")
    models.BertTokenizerFast(str(directory / "vocab.txt")).save_pretrained(directory / "model")
    return directory / "model"
