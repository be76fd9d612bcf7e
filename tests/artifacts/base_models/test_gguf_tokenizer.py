"""Tokenizers from GGUF files give the ids that llama.cpp gives."""

import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.artifacts.base_models.gguf_conversion import convert_gguf
from gumshoe.artifacts.base_models.gguf_file import GGUFFile
from gumshoe.artifacts.base_models.gguf_tokenizer import PRE_TOKENIZERS
from tests.artifacts.base_models.gguf_files import CONTROL, train_vocabulary, write_gguf

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SUFFIXES = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_CPP = {
    "gpt-2": [_GPT_2],
    "smollm": [r"\p{N}", _GPT_2],
    "llama-bpe": [_SUFFIXES + "|" + _REST % r"\p{N}{1,3}"],
    "qwen2": [_SUFFIXES + "|" + _REST % r"\p{N}"],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|"
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}
"""Regular expressions of llama.cpp (`llm_tokenizer_bpe` in src/llama-vocab.cpp), each applied to what is left."""
TEXTS = [
    "Invoice 20417 of 9 March 2023:   1,095.50 dollars\n\n\n   12 pumps\t  3x\r\n",
    "From: Nora <nora@example.com>\nDate: Tue, 14 Mar 2023 09:41:07 +0000\nSubject: RE: don't, WE'LL, It'S\n\n> quoted",
    "def read(path: Path) -> int:\n    return  {1: 'a', 22: \"b\"}[len(path) // 333]\n\n\n",
    "naïve Straße ΕΛΛΆΔΑ Москва 東京タワー \U0001f600\U0001f468\u200d\U0001f469 ½ Ⅻ ٣٤٥",
    "HTTPServer XMLHttp iPhone McDonald https://example.com/a/b?c=1&d=22/",
    "",
    " ",
    "   leading and trailing   ",
]
ALPHABET = "abcXYZ àÉßЖж東 0123٣½\n\r\t'.,:;/<>|@!-_(){}sStTrReEmMlLdDvV\U0001f600"


def split_words(text: str, expressions: list[str]) -> list[str]:
    """Return the words of a text: what each expression matches, and what is between its matches."""
    words = [text]
    for expression in expressions:
        parts: list[str] = []
        for word in words:
            end = 0
            for found in regex.finditer(expression, word):
                parts += [word[end : found.start()], found[0]]
                end = found.end()
            parts.append(word[end:])
        words = [each for each in parts if each]
    return words


@cache
def byte_characters() -> dict[int, str]:
    """Return the character that stands for each byte in GPT-2's vocabulary."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def encode(text: str, pre: str) -> list[int]:
    """Return the ids of a text: split it, then apply the merges, the earliest one first."""
    tokens, merges = train_vocabulary()
    ids, ranks = {token: place for place, token in enumerate(tokens)}, {each: rank for rank, each in enumerate(merges)}
    found = list[int]()
    for word in split_words(unicodedata.normalize("NFC", text) if pre == "qwen2" else text, LLAMA_CPP[pre]):
        parts = [byte_characters()[byte] for byte in word.encode()]
        if "".join(parts) in ids and pre in ("llama-bpe", "tekken"):
            parts = ["".join(parts)]
        while pairs := [
            (ranks[pair], at) for at in range(len(parts) - 1) if (pair := " ".join(parts[at : at + 2])) in ranks
        ]:
            _, at = min(pairs)
            parts[at : at + 2] = ["".join(parts[at : at + 2])]
        found += [ids[part] for part in parts]
    return found


@cache
def load(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the directory of a converted model for each way to split words."""
    place, found = tmp_path_factory.mktemp("tokenizers"), dict[str, Path]()
    for pre in LLAMA_CPP:
        found[pre] = place / pre
        found[pre].mkdir()
        file = write_gguf(place / f"{pre}.gguf", pre=pre)
        convert_gguf(GGUFFile.open(file), found[pre], lambda *_, **__: None)
    return found


@pytest.mark.parametrize("pre", LLAMA_CPP)
def test_texts_have_the_ids_of_llama_cpp(pre: str, directories: dict[str, Path]) -> None:
    tokenizer = load(directories[pre])

    @given(
        st.text(st.sampled_from(ALPHABET), max_size=40) | st.lists(st.sampled_from(TEXTS[0].split(" "))).map(" ".join)
    )
    def check(text: str) -> None:
        assert tokenizer.encode(text, add_special_tokens=False) == encode(text, pre)

    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == encode(text, pre), text
        assert tokenizer.decode(encode(text, pre)) == (unicodedata.normalize("NFC", text) if pre == "qwen2" else text)
    check()


def test_other_names_of_the_same_way_are_supported() -> None:
    assert PRE_TOKENIZERS["llama3"] == PRE_TOKENIZERS["llama-v3"] == PRE_TOKENIZERS["llama-bpe"]
    assert PRE_TOKENIZERS["deepseek-r1-qwen"] == PRE_TOKENIZERS["qwen2"]


def test_control_tokens_and_special_ids_are_kept(directories: dict[str, Path]) -> None:
    tokenizer = load(directories["smollm"])
    assert [tokenizer.encode(each) for each in CONTROL] == [[0], [1], [2]]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", "<|im_end|>", CONTROL[0])
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""
    assert tokenizer.encode("1") == encode("1", "smollm"), "no BOS token"
    assert load(directories["llama-bpe"]).encode("1") == [1, *encode("1", "llama-bpe")]


def test_unused_and_user_defined_tokens(tmp_path: Path) -> None:
    tokens, merges = train_vocabulary()
    types = [3 if token in CONTROL else 1 for token in tokens]
    tokens = [*tokens[:-2], "<think>", "[PAD399]"]
    types[-2:] = [4, 5]
    names = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges[:-2]}
    convert_gguf(GGUFFile.open(write_gguf(tmp_path / "model.gguf", metadata=names)), tmp_path, lambda *_, **__: None)
    tokenizer = load(tmp_path)
    assert tokenizer.encode("<think>") == [398]
    assert tokenizer.decode([398], skip_special_tokens=True) == "<think>"
    assert max(tokenizer.get_vocab().values()) == 398
