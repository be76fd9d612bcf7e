"""Build the files of a tokenizer from the metadata of a GGUF file.

A GGUF file has the vocabulary and the merges of a byte-level BPE tokenizer, but only a name for the step that splits
text into words before the merges. The table of names follows `src/llama-vocab.cpp` of llama.cpp.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gumshoe.artifacts.base_models.gguf_file import GGUFFile
from gumshoe.errors import UsageError

_NUMBER_OF_DIGITS = "{digits}"
_LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|{digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TokenType(IntEnum):
    """Types of tokens in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split into words before the merges are applied."""

    pattern: str | None = None
    """Regular expression of a word; None for GPT-2's, which the byte-level step has built in."""
    separates_digits: bool = False
    """True if each digit is a word of its own, before the pattern is applied."""
    keeps_whole_words: bool = False
    """True if a word that is a token is that token, whatever the merges give."""
    adds_bos: bool = False
    """True if a text begins with the BOS token, unless the file says otherwise."""
    normalizer: str | None = None
    """Unicode normalization, e.g. NFC."""

    def steps(self) -> dict[str, Any]:
        """Return the `pre_tokenizer` of a tokenizer.json."""
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": self.pattern is None,
        }
        if self.pattern is not None:
            word = {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": False}
            return {"type": "Sequence", "pretokenizers": [word, byte_level]}
        if self.separates_digits:
            digits = {"type": "Digits", "individual_digits": True}
            return {"type": "Sequence", "pretokenizers": [digits, byte_level]}
        return byte_level


_LLAMA_3 = PreTokenizer(_LLAMA.replace(_NUMBER_OF_DIGITS, r"\p{N}{1,3}"), keeps_whole_words=True, adds_bos=True)
_QWEN_2 = PreTokenizer(_LLAMA.replace(_NUMBER_OF_DIGITS, r"\p{N}"), normalizer="NFC")
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(separates_digits=True),
    "starcoder": PreTokenizer(separates_digits=True),
    "refact": PreTokenizer(separates_digits=True),
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "tekken": PreTokenizer(_TEKKEN, keeps_whole_words=True, adds_bos=True),
}
"""Supported values of `tokenizer.ggml.pre`."""


def build_tokenizer(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of `tokenizer.json` and of `tokenizer_config.json`.

    Raises:
        UsageError: the tokenizer is not a byte-level BPE tokenizer, its way to split words is not supported, or its
            metadata are damaged.
    """
    pre_tokenizer = _find_pre_tokenizer(file)
    tokens = [str(each) for each in file.require("tokenizer.ggml.tokens")]
    types = file.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise file.damage(f"there are {len(types):,} types of {len(tokens):,} tokens")
    ids = {
        name: tokens[place]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if 0 <= (place := int(file.get(f"tokenizer.ggml.{key}_token_id", -1))) < len(tokens)
    }
    bos = ids.get("bos") if file.get("tokenizer.ggml.add_bos_token", pre_tokenizer.adds_bos) else None
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _describe_added_token(place, token, TokenType(kind))
            for place, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ],
        "normalizer": {"type": pre_tokenizer.normalizer} if pre_tokenizer.normalizer else None,
        "pre_tokenizer": pre_tokenizer.steps(),
        "post_processor": _describe_bos(bos, tokens.index(bos)) if bos is not None else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre_tokenizer.keeps_whole_words,
            "vocab": {
                token: place
                for place, (token, kind) in enumerate(zip(tokens, types, strict=True))
                if kind != TokenType.UNUSED
            },
            "merges": [_split_merge(file, each) for each in file.require("tokenizer.ggml.merges")],
        },
    }
    config: dict[str, Any] = {f"{name}_token": token for name, token in ids.items()}
    config |= {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "clean_up_tokenization_spaces": False}
    return tokenizer, config


def _find_pre_tokenizer(file: GGUFFile) -> PreTokenizer:
    kind, name = file.require("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise UsageError(
            "gguf.unsupported-tokenizer",
            f"{file.path} has a tokenizer of the kind {kind}; supported is gpt2 (byte-level BPE)",
        )
    if name not in PRE_TOKENIZERS:
        raise UsageError(
            "gguf.unsupported-tokenizer",
            f"{file.path}: the tokenizer splits words in the way {name}, which is not supported; supported are "
            f"{', '.join(PRE_TOKENIZERS)}",
        )
    return PRE_TOKENIZERS[name]


def _describe_added_token(place: int, token: str, kind: TokenType) -> dict[str, Any]:
    no = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": place, "content": token, **no, "special": kind == TokenType.CONTROL}


def _describe_bos(token: str, place: int) -> dict[str, Any]:
    """Return a `post_processor` that puts the BOS token before a text."""
    bos = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, {"SpecialToken": {"id": token, "type_id": 1}}, second],
        "special_tokens": {token: {"id": token, "ids": [place], "tokens": [token]}},
    }


def _split_merge(file: GGUFFile, merge: str) -> list[str]:
    """Return the two tokens of a merge, which are separated by a space and may begin with one."""
    at = merge.find(" ", 1)
    if at < 0:
        raise file.damage(f"the merge {merge!r:.40} has no two tokens")
    return [merge[:at], merge[at + 1 :]]
