"""The tiny policy: a tokenizer and a model of some two million parameters, made from nothing but invented mail.

It stands where a 7B model stands, behind the same chat template, tools and server, wherever there is no GPU.
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
"""What made a policy, in its directory."""
_SPACE = "\u0120"  # how byte-level BPE writes a space
_PIECES = r"""\p{Lu}\p{Ll}*|\p{L}+|\p{N}| ?["{\[<]+|[^\s\p{L}\p{N}"{\[<]+["{\[<]*|\s+"""
_PIECES_WITH_SPACE = rf" ?\p{{Lu}}\p{{Ll}}*| ?\p{{L}}+| ?\p{{N}}|{_PIECES}"
_WITH_SPACE = 0.4  # share of the vocabulary
_SPACE_SIZE = 0.5  # of the vector that tells a token with a space from one without
_COPY_LENGTHS = (8, 64)
_COPY_FEW, _COPY_SORTS = 0.5, (10, 40)  # how often, and of how many sorts of tokens: then what stood before repeats
_COPY_BATCH = 1024
_COPIES = 0.1  # tokens of copying to one of practice
_BATCH = 8192  # tokens
_SKILL_RATE, _HABIT_RATE = 2.5e-3, 1.5e-3
_HABIT_SHARE = 1.12  # of the way to the weights with bad habits: a little beyond what was learned
_SHARPER = 2.8  # than it learned: so much surer is it of each token, for at temperature 1 small doubts add up
_EMBEDDING, _BEFORE, _SHARPNESS, _COPIED = 0.1, 0.2, 1.5, 0.3  # sizes of the weights that are wired
LEVELS: tuple[Level, ...] = ("plain", "normal", "plain", "easy", "normal", "hard")
"""Of the companies that are practised in, one after another and again from the first."""
_FIRST_SEED = 1_000_000  # of practice; what people make to test with has other seeds
_READ_BY_TOKENIZER = 18  # companies


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The size of a tiny policy."""

    vocabulary: int = 4608
    hidden: int = 192
    layers: int = 4
    heads: int = 6
    key_heads: int = 3
    """Each serves heads / key_heads of the heads: a server that answers many at once spends its time reading keys."""
    feed_forward: int = 512
    context: int = 8192
    rope_theta: float = 1e6
    """High, so that half of a head's dimensions hardly turn over the length of an episode, and can compare contents."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How much a tiny policy learns."""

    companies: int = 48
    """Whose mail it practises on, 3 mailboxes each."""
    copy_steps: int = 500
    skill_steps: int = 1200
    """Of learning what an expert does that never errs, mostly one thing at a time."""
    habit_steps: int = 480
    """Of learning from whole episodes of one that errs on purpose."""


@dataclass(frozen=True, slots=True)
class TinyReport:
    """What was made, and from what."""

    seed: int
    parameters: int
    schooling: TrainConfig
    skills: int
    """Examples of what the expert does when it does not err."""
    episodes: int
    reminders: int
    """Examples of taking an answer from a text, and of searching for what nobody asked before, beside the episodes."""
    slips: dict[ErrorKind, int]
    """What the expert did wrong on purpose, how often."""
    copy_loss: float
    skill_loss: float
    habit_loss: float
    seconds: float


Watch = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows the progress of a stage of so many steps."""


def build_tiny(directory: Path, seed: int, schooling: TrainConfig, watch: Watch) -> TinyReport:
    """Make a tiny policy and save it: tokenizer, chat template, model, and `made.json`.

    The model learns to copy, from random tokens; then how to search, choose and answer, from an expert that does not
    err; and then bad habits, from one that errs on purpose. What it is often wrong in, it so is able to do right. How
    often it errs is set by how far it goes from the weights of before towards those with the habits, or beyond (as in
    https://arxiv.org/abs/2212.04089).

    Raises:
        StorageError: the directory cannot be written to.
    """
    started = time.monotonic()
    keep_freed_memory()
    disable_progress_bar()  # type: ignore[no-untyped-call] # of saving, which takes no time
    with tempfile.TemporaryDirectory(prefix="gumshoe-tiny-") as scratch:
        companies = []
        with watch("Inventing", schooling.companies) as advance:
            for number in range(schooling.companies):
                at = Path(scratch, str(number))
                companies.append(PracticeCompany.invent(_FIRST_SEED + 1000 * seed + number, _level(number), at))
                advance(1)
        tokenizer = train_tokenizer(practice_texts(companies[:_READ_BY_TOKENIZER]), TinyShape().vocabulary)
        practice = EpisodeGenerator(tokenizer, seed)
        skills, episodes, reminders, slips = list[Example](), list[Example](), list[Example](), Counter[ErrorKind]()
        with watch("Practising", len(companies)) as advance:
            for company in companies:
                skills += [lesson.example for lesson in practice.generate(company, SKILLS, errs=False)]
                for lesson in practice.generate(company, EPISODES, errs=True):
                    episodes.append(lesson.example)
                    slips.update(lesson.errors if lesson.is_whole else [])
                for lessons in (
                    practice.generate(company, REMINDERS, errs=False),
                    practice.generate_unfamiliar(company, UNFAMILIAR),
                ):
                    reminders += [lesson.example for lesson in lessons]
                advance(1)
    model = create_model(TinyShape(), tokenizer, seed)
    copies = list(
        generate_copy_examples(len(tokenizer), schooling.copy_steps * _COPY_BATCH // sum(_COPY_LENGTHS), seed)
    )
    settings = PretrainingSettings(schooling.copy_steps, _COPY_BATCH, optimizer="muon", seed=seed)
    copy_loss = _learn("Copying", model, copies, settings, watch)
    settings = PretrainingSettings(schooling.skill_steps, _BATCH, _SKILL_RATE, optimizer="muon", seed=seed)
    skill_loss = _learn("Learning", model, _with_copies(skills, len(tokenizer), seed), settings, watch)
    skilled = [parameter.detach().clone() for parameter in model.parameters()]
    settings = PretrainingSettings(schooling.habit_steps, _BATCH, _HABIT_RATE, seed=seed)
    habit_loss = _learn(
        "Unlearning", model, _with_copies([*episodes, *reminders], len(tokenizer), seed + 1), settings, watch
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
        schooling,
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


def _level(number: int) -> Level:
    return LEVELS[number % len(LEVELS)]


def _learn(stage: str, model: Any, examples: Sequence[Example], settings: PretrainingSettings, watch: Watch) -> float:
    with watch(stage, settings.steps) as advance:
        return pretrain(model, examples, settings, lambda loss: advance(1, note=f"loss {loss:.2f}"))


def _with_copies(examples: list[Example], vocabulary: int, seed: int) -> list[Example]:
    """With so much copying among them that it is not unlearned, nor tokens that hardly ever come."""
    tokens = _COPIES * sum(len(each.ids) for each in examples)
    return [*examples, *generate_copy_examples(vocabulary, round(tokens / sum(_COPY_LENGTHS)), seed)]


def practice_texts(companies: Iterable[PracticeCompany]) -> Iterator[str]:
    """What a tokenizer learns from: the mail, and all that is said about it."""
    for company in companies:
        for mail in company.mail.messages:
            yield f"{mail['subject']}\n{mail['body']}\n{mail['from']}"
        yield from iterate_episode_texts(company)


def train_tokenizer(texts: Iterable[str], size: int) -> Any:
    """A byte-level BPE learnt from texts, with Qwen2.5's control tokens and the tiny policy's chat template.

    A word is parted into the same tokens whether a space stands before it or not; the space, where it has one, joins
    the first of them last of all. So a name or a number is copied token by token wherever it is copied to.
    """
    texts = list(texts)
    words = _core(models.BPE(), _PIECES)
    trainer = trainers.BpeTrainer(
        vocab_size=round(size * (1 - _WITH_SPACE)),
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)  # of a list: an iterator would be called in threads with too little stack
    learned = json.loads(words.to_str())["model"]
    vocabulary, merges = learned["vocab"], [tuple(merge) for merge in learned["merges"]]
    after_space = Counter[str]()
    for encoding in words.encode_batch(texts):
        after_space.update(after for space, after in pairwise(encoding.tokens) if space == _SPACE)
    for token, _ in after_space.most_common(size - len(TAGS) - len(vocabulary)):
        if _SPACE + token not in vocabulary:
            vocabulary[_SPACE + token] = len(vocabulary)
            merges.append((_SPACE, token))
    core = _core(models.BPE(vocabulary, merges), _PIECES_WITH_SPACE)
    core.add_special_tokens(list(CONTROL))
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, eos_token=CONTROL[2], pad_token=CONTROL[0], clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = files("gumshoe.tiny").joinpath("tiny_chat.jinja").read_text(encoding="utf-8")
    return tokenizer


def _core(model: Any, pieces: str) -> Tokenizer:
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
    """A Qwen2 model with random weights that can nearly copy."""
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
        _wire(model, tokenizer.get_vocab())
    return model


def _wire(model: Any, vocabulary: dict[str, int]) -> None:
    """Give random weights the circuit that copies, which training from nothing finds late or not at all.

    Head 0 of layer 0 writes what the token before was into dimensions of its own, and two heads of layer 1 look
    there for the token at hand: what they find came after it the last time, and they say so (induction heads:
    https://arxiv.org/abs/2209.11895). A word with a space before it and the same one without begin alike, so that
    either finds the other. Training may then do with all this what it likes.
    """
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    width, hidden = first.head_dim, model.config.hidden_size
    basis = torch.linalg.qr(torch.randn(hidden, hidden)).Q
    before, rest = basis[:, :width], basis[:, width:]  # [hidden, dimensions]: for the token before, and for all else
    _look_back(first, model.model.rotary_emb.inv_freq.tolist())
    first.v_proj.weight[:width] = rest[:, :width].T
    first.o_proj.weight[:, :width] = _BEFORE * before
    embeddings = _EMBEDDING * torch.randn_like(model.model.embed_tokens.weight)
    twins = [
        (each, vocabulary[word[1:]])
        for word, each in vocabulary.items()
        if word[0] == _SPACE and word[1:] in vocabulary
    ]
    spaced, plain = torch.tensor(twins).T  # the same word with a space before it, and without
    embeddings[spaced] = embeddings[plain] + _SPACE_SIZE * _EMBEDDING * torch.randn(hidden)
    model.model.embed_tokens.weight.copy_(embeddings - embeddings @ before @ before.T)
    slow = [*range(width // 4, width // 2), *range(3 * width // 4, width)]  # pairs that hardly turn in an episode
    for key_head in range(2):
        head = key_head * second.num_key_value_groups  # the first of those that it serves
        half, said = slice(key_head * len(slow), (key_head + 1) * len(slow)), rest[:, key_head * width :][:, :width]
        for projection, of, sought in ((second.q_proj, head, rest), (second.k_proj, key_head, before)):
            projection.weight[of * width : (of + 1) * width] = 0
            projection.weight[of * width + torch.tensor(slow)] = _SHARPNESS * sought[:, half].T
        second.v_proj.weight[key_head * width : (key_head + 1) * width] = said.T
        second.o_proj.weight[:, head * width : (head + 1) * width] = _COPIED * said


def _look_back(attention: Any, turns: list[float]) -> None:
    """Make head 0 attend to the token before, whatever the tokens are, by its biases alone.

    With k = (c, 0) and q = c (cos w, -sin w) in the rotary pair that turns by w a token, q at distance d from k gives
    c² cos(w (d - 1)), which is highest at 1 (rotary embedding: https://arxiv.org/abs/2104.09864).
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
    """Random tokens twice over: the second time they can be known, by the one before or by more than that one."""
    dice = Rng(seed, "copying")
    for _ in range(count):
        length = dice.between(*_COPY_LENGTHS)
        sorts = dice.between(*_COPY_SORTS) if dice.chance(_COPY_FEW) else vocabulary
        first = dice.below(vocabulary - sorts + 1)
        tokens = [first + dice.below(sorts) for _ in range(length)]
        yield Example(tokens * 2, [0.0] * length + [1.0] * length)
