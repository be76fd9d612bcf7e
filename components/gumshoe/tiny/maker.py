"""Build the tiny policy: a tokenizer and a model of two million parameters, trained only on synthetic mail.

It replaces a 7B model on machines without a GPU, with the same chat template, tools and server.
"""

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from gumshoe.artifacts.storage import explain_os_errors
from gumshoe.inference.cpu_memory import keep_freed_memory
from gumshoe.synthesis.difficulty import Level
from gumshoe.synthesis.rng import Rng
from gumshoe.terminal import Advance
from gumshoe.tiny.episode_generator import (
    EPISODES,
    REMINDERS,
    SKILLS,
    UNFAMILIAR,
    EpisodeGenerator,
    PracticeCompany,
    iterate_episode_texts,
)
from gumshoe.tiny.pretraining import Example, PretrainingSettings, pretrain
from gumshoe.training.sft.scripted_expert import ErrorKind

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
REPORT_FILE = "made.json"
"""The report of `gumshoe tiny build`, in the directory of the policy."""
_SPACE = "\u0120"  # how byte-level BPE writes a space
_PIECES = r"""\p{Lu}\p{Ll}*|\p{L}+|\p{N}| ?["{\[<]+|[^\s\p{L}\p{N}"{\[<]+["{\[<]*|\s+"""
_PIECES_WITH_SPACE = rf" ?\p{{Lu}}\p{{Ll}}*| ?\p{{L}}+| ?\p{{N}}|{_PIECES}"
_WITH_SPACE = 0.4  # share of the vocabulary for words with a space before them
_SPACE_SIZE = 0.5  # relative size of the vector that distinguishes a token with a space from one without
_COPY_LENGTHS = (8, 64)
_COPY_FEW, _COPY_SORTS = 0.5, (10, 40)  # probability of few distinct tokens, and how many: then short contexts repeat
_COPY_BATCH = 1024
_COPY_SHARE = 0.1  # tokens of copy examples per token of other examples
_BATCH = 8192  # tokens
_SKILL_RATE, _HABIT_RATE = 2.5e-3, 1.5e-3
_HABIT_SHARE = 1.12  # of the weight change by episodes with errors: a little beyond what was trained
_SHARPER = 2.8  # factor of the logits: at temperature 1, small probabilities of wrong tokens add up over an episode
_EMBEDDING, _PREVIOUS, _SHARPNESS, _COPIED = 0.1, 0.2, 1.5, 0.3  # sizes of the initial weights of the induction heads
LEVELS: tuple[Level, ...] = ("plain", "normal", "plain", "easy", "normal", "hard")
"""Difficulty levels of the companies, in turn."""
_FIRST_SEED = 1_000_000  # of synthetic mail for training; test data uses other seeds
_READ_BY_TOKENIZER = 18  # companies whose texts train the tokenizer


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The size of a tiny policy."""

    vocabulary: int = 4608
    hidden: int = 192
    layers: int = 4
    heads: int = 6
    key_heads: int = 3
    """Number of key-value heads; few of them save time in a server with many requests, which mostly reads keys."""
    feed_forward: int = 512
    context: int = 8192
    rope_theta: float = 1e6
    """High, so that half of a head's dimensions hardly rotate over an episode, and can compare contents."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The amount of training of a tiny policy."""

    companies: int = 48
    """Number of synthetic companies, with 3 mailboxes each."""
    copy_steps: int = 500
    skill_steps: int = 1200
    """Steps on examples of an expert without errors, mostly for one skill at a time."""
    habit_steps: int = 480
    """Steps on whole episodes of an expert with deliberate errors."""


@dataclass(frozen=True, slots=True)
class TinyReport:
    """Facts about a tiny policy and its training."""

    seed: int
    parameters: int
    schooling: TrainConfig
    skills: int
    """Number of examples of the expert without errors."""
    episodes: int
    reminders: int
    """Number of examples of answers from a text, and of searches for unfamiliar questions, beside the episodes."""
    slips: dict[ErrorKind, int]
    """Number of deliberate errors of the expert, by kind."""
    copy_loss: float
    skill_loss: float
    habit_loss: float
    seconds: float


Watch = Callable[[str, int], AbstractContextManager[Advance]]
"""Show the progress of a stage with this number of steps."""


def build_tiny(directory: Path, seed: int, config: TrainConfig, watch: Watch) -> TinyReport:
    """Build a tiny policy and save it: tokenizer, chat template, model, and `made.json`.

    The model first learns to copy, from random tokens; then to search, choose and answer, from an expert without
    errors; and then bad habits, from an expert with deliberate errors. So it is often wrong in things that it is able
    to do. The rate of errors is set by moving from the weights of the second stage towards those of the third, and
    beyond (task arithmetic, https://arxiv.org/abs/2212.04089).

    Raises:
        StorageError: the directory cannot be written to.
    """
    started = time.monotonic()
    keep_freed_memory()
    disable_progress_bar()  # type: ignore[no-untyped-call] # saving takes no time
    with tempfile.TemporaryDirectory(prefix="gumshoe-tiny-") as scratch:
        companies = []
        with watch("Generating mail", config.companies) as advance:
            for number in range(config.companies):
                at = Path(scratch, str(number))
                companies.append(PracticeCompany.invent(_FIRST_SEED + 1000 * seed + number, _difficulty(number), at))
                advance(1)
        tokenizer = train_tokenizer(practice_texts(companies[:_READ_BY_TOKENIZER]), TinyShape().vocabulary)
        generator = EpisodeGenerator(tokenizer, seed)
        skills, episodes, reminders, slips = list[Example](), list[Example](), list[Example](), Counter[ErrorKind]()
        with watch("Generating examples", len(companies)) as advance:
            for company in companies:
                skills += [example.example for example in generator.generate(company, SKILLS, makes_errors=False)]
                for example in generator.generate(company, EPISODES, makes_errors=True):
                    episodes.append(example.example)
                    slips.update(example.errors if example.is_whole else [])
                for more in (
                    generator.generate(company, REMINDERS, makes_errors=False),
                    generator.generate_unfamiliar(company, UNFAMILIAR),
                ):
                    reminders += [example.example for example in more]
                advance(1)
    model = create_model(TinyShape(), tokenizer, seed)
    copies = list(generate_copy_examples(len(tokenizer), config.copy_steps * _COPY_BATCH // sum(_COPY_LENGTHS), seed))
    settings = PretrainingSettings(config.copy_steps, _COPY_BATCH, optimizer="muon", seed=seed)
    copy_loss = _train_stage("Copying", model, copies, settings, watch)
    settings = PretrainingSettings(config.skill_steps, _BATCH, _SKILL_RATE, optimizer="muon", seed=seed)
    skill_loss = _train_stage("Skills", model, _add_copy_examples(skills, len(tokenizer), seed), settings, watch)
    skilled = [parameter.detach().clone() for parameter in model.parameters()]
    settings = PretrainingSettings(config.habit_steps, _BATCH, _HABIT_RATE, seed=seed)
    habit_loss = _train_stage(
        "Habits", model, _add_copy_examples([*episodes, *reminders], len(tokenizer), seed + 1), settings, watch
    )
    with torch.no_grad():
        for parameter, before in zip(model.parameters(), skilled, strict=True):
            parameter.copy_(torch.lerp(before, parameter, _HABIT_SHARE))
        model.model.norm.weight.mul_(_SHARPER)  # scales the logits
    parameters = sum(parameter.numel() for parameter in model.parameters())
    seconds = round(time.monotonic() - started)
    report = TinyReport(
        seed,
        parameters,
        config,
        len(skills),
        len(episodes),
        len(reminders),
        dict(slips),
        copy_loss,
        skill_loss,
        habit_loss,
        seconds,
    )
    with explain_os_errors(directory):
        model.to(torch.bfloat16).save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        (directory / REPORT_FILE).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return report


def _difficulty(number: int) -> Level:
    return LEVELS[number % len(LEVELS)]


def _train_stage(
    stage: str, model: Any, examples: Sequence[Example], settings: PretrainingSettings, watch: Watch
) -> float:
    with watch(stage, settings.steps) as advance:
        return pretrain(model, examples, settings, lambda loss: advance(1, note=f"loss {loss:.2f}"))


def _add_copy_examples(examples: list[Example], vocabulary: int, seed: int) -> list[Example]:
    """Add copy examples, so that the model forgets neither copying nor rare tokens."""
    tokens = _COPY_SHARE * sum(len(each.ids) for each in examples)
    return [*examples, *generate_copy_examples(vocabulary, round(tokens / sum(_COPY_LENGTHS)), seed)]


def practice_texts(companies: Iterable[PracticeCompany]) -> Iterator[str]:
    """Yield the texts that train the tokenizer: the mail, and the texts of episodes about it."""
    for company in companies:
        for mail in company.mail.messages:
            yield f"{mail['subject']}\n{mail['body']}\n{mail['from']}"
        yield from iterate_episode_texts(company)


def train_tokenizer(texts: Iterable[str], size: int) -> Any:
    """Train a byte-level BPE tokenizer, with the control tokens of Qwen2.5 and the tiny policy's chat template.

    A word is split into the same tokens with and without a space before it, because the space is merged into its first
    token last. So a name or number can be copied token by token to any place.
    """
    texts = list(texts)
    words = _create_tokenizer(models.BPE(), _PIECES)
    trainer = trainers.BpeTrainer(
        vocab_size=round(size * (1 - _WITH_SPACE)),
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)  # a list: an iterator is called in threads with a small stack
    learned = json.loads(words.to_str())["model"]
    vocabulary, merges = learned["vocab"], [tuple(merge) for merge in learned["merges"]]
    after_space = Counter[str]()
    for encoding in words.encode_batch(texts):
        after_space.update(after for space, after in pairwise(encoding.tokens) if space == _SPACE)
    for token, _ in after_space.most_common(size - len(TAGS) - len(vocabulary)):
        if _SPACE + token not in vocabulary:
            vocabulary[_SPACE + token] = len(vocabulary)
            merges.append((_SPACE, token))
    core = _create_tokenizer(models.BPE(vocabulary, merges), _PIECES_WITH_SPACE)
    core.add_special_tokens(list(CONTROL))
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, eos_token=CONTROL[2], pad_token=CONTROL[0], clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = files("gumshoe.tiny").joinpath("tiny_chat.jinja").read_text(encoding="utf-8")
    return tokenizer


def _create_tokenizer(model: Any, pieces: str) -> Tokenizer:
    core = Tokenizer(model)
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    return core


def create_model(shape: TinyShape, tokenizer: Any, seed: int) -> Any:
    """Create a Qwen2 model with random weights and induction heads, which can almost copy."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        _add_induction_heads(model, tokenizer.get_vocab())
    return model


def _add_induction_heads(model: Any, vocabulary: dict[str, int]) -> None:
    """Add induction heads to random weights, because training from scratch finds them late or never.

    Induction heads (https://arxiv.org/abs/2209.11895) copy: head 0 of layer 0 writes the previous token into separate
    dimensions, and two heads of layer 1 search there for the current token, and predict the token after it. A word with
    a space and the same word without start with similar embeddings, so that each finds the other. Training can change
    all of these weights.
    """
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    width, hidden = first.head_dim, model.config.hidden_size
    basis = torch.linalg.qr(torch.randn(hidden, hidden)).Q
    # [hidden, dimensions]: dimensions for the previous token, and for everything else
    before, rest = basis[:, :width], basis[:, width:]
    _attend_to_previous_token(first, model.model.rotary_emb.inv_freq.tolist())
    first.v_proj.weight[:width] = rest[:, :width].T
    first.o_proj.weight[:, :width] = _PREVIOUS * before
    embeddings = _EMBEDDING * torch.randn_like(model.model.embed_tokens.weight)
    twins = [
        (each, vocabulary[word[1:]])
        for word, each in vocabulary.items()
        if word[0] == _SPACE and word[1:] in vocabulary
    ]
    spaced, plain = torch.tensor(twins).T  # ids of words with a space, and of the same words without
    embeddings[spaced] = embeddings[plain] + _SPACE_SIZE * _EMBEDDING * torch.randn(hidden)
    model.model.embed_tokens.weight.copy_(embeddings - embeddings @ before @ before.T)
    # rotary pairs that hardly rotate over an episode
    slow = [*range(width // 4, width // 2), *range(3 * width // 4, width)]
    for key_head in range(2):
        head = key_head * second.num_key_value_groups  # first query head of this key-value head
        half, copied = slice(key_head * len(slow), (key_head + 1) * len(slow)), rest[:, key_head * width :][:, :width]
        for projection, of, sought in ((second.q_proj, head, rest), (second.k_proj, key_head, before)):
            projection.weight[of * width : (of + 1) * width] = 0
            projection.weight[of * width + torch.tensor(slow)] = _SHARPNESS * sought[:, half].T
        second.v_proj.weight[key_head * width : (key_head + 1) * width] = copied.T
        second.o_proj.weight[:, head * width : (head + 1) * width] = _COPIED * copied


def _attend_to_previous_token(attention: Any, turns: list[float]) -> None:
    """Make head 0 attend to the previous token, whatever the tokens are, by its biases only.

    In a rotary pair that rotates by w per token, with k = (c, 0) and q = c (cos w, -sin w), the score at distance d is
    c² cos(w (d - 1)), which has its maximum at d = 1 (rotary embedding: https://arxiv.org/abs/2104.09864).
    """
    width = attention.head_dim
    size = math.sqrt(8 * math.sqrt(width))
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[:width] = 0
        projection.bias[:width] = 0
    for pair, turn in enumerate(turns[:6]):
        attention.k_proj.bias[pair] = size
        attention.q_proj.bias[pair] = size * math.cos(turn)
        attention.q_proj.bias[pair + width // 2] = -size * math.sin(turn)


def generate_copy_examples(vocabulary: int, count: int, seed: int) -> Iterator[Example]:
    """Yield random token sequences, each repeated once; only the repetition counts, since it can be predicted."""
    rng = Rng(seed, "copying")
    for _ in range(count):
        length = rng.between(*_COPY_LENGTHS)
        sorts = rng.between(*_COPY_SORTS) if rng.chance(_COPY_FEW) else vocabulary
        first = rng.below(vocabulary - sorts + 1)
        tokens = [first + rng.below(sorts) for _ in range(length)]
        yield Example(tokens * 2, [0.0] * length + [1.0] * length)
