"""Generate training examples: episodes of the scripted expert in synthetic mailboxes and document collections."""

import json
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from gumshoe.documents.document import Document
from gumshoe.documents.index import DocumentHit, DocumentNotFoundError
from gumshoe.environments.base import Environment
from gumshoe.environments.documents import DocumentsEnvironment
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import Call
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.search_results import Hit
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.synthesis.difficulty import Level
from gumshoe.synthesis.mail_questions import QuestionBackground
from gumshoe.synthesis.mailboxes import MAIL_FILE, SyntheticMail, synthesize_mail, write_mail
from gumshoe.synthesis.rng import Rng
from gumshoe.tiny.pretraining import Example
from gumshoe.training.sft.scripted_expert import DOCUMENTS, MAIL, ErrorKind, ExpertTurn, ScriptedExpert, parse_hits

MAX_TURNS = 10
_MAILBOXES, _MESSAGES = 3, 900  # small and many, so that memorizing names or addresses does not help
_OTHER_IDS = 0.5  # share of companies whose message ids follow another pattern than those of synthetic mail
_ID_PATTERNS = (  # of real mail systems: # is a digit, ? a hexadecimal digit, * a letter or digit
    "#######.#############.JavaMail.root",
    "????????-????-????-????-????????????",
    "CA*******************",
    "##############.GA####",
    "????????.#######",
)
_PLACEHOLDERS = {"#": string.digits, "?": string.digits + "abcdef", "*": string.ascii_letters + string.digits}
_HITS_LENGTH = 400  # characters
_REPETITIONS = 30  # of prompts and tool schemas, so that the tokenizer learns whole words for them


@dataclass(frozen=True)
class PracticeCompany:
    """Synthetic mail with its index."""

    mail: SyntheticMail
    index: MailIndex

    @classmethod
    def invent(
        cls, seed: int, level: Level, directory: Path, *, mailboxes: int = _MAILBOXES, messages: int = _MESSAGES
    ) -> "PracticeCompany":
        """Generate mail and index it in a directory."""
        mail = synthesize_mail(seed, mailboxes, messages, level)
        rng = Rng(seed, "ids")
        if rng.chance(_OTHER_IDS):
            mail = replace_ids(mail, rng.pick(_ID_PATTERNS), rng)
        write_mail(mail, directory)
        build_mail_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
        return cls(mail, MailIndex(directory / "index"))

    @cached_property
    def answers(self) -> dict[str, str]:
        """The answers of questions, by id of a message that contains the answer."""
        return {source: each.answer for each in self.mail.scenarios for source in each.message_ids}

    @property
    def domain(self) -> str:
        """Mail domain of the company."""
        return str(self.mail.scenarios.scenarios[0].inbox_address).partition("@")[2]


def replace_ids(mail: SyntheticMail, pattern: str, rng: Rng) -> SyntheticMail:
    """Return the mail with new message ids that follow a pattern.

    If all ids looked alike, a model would use their look to tell messages from documents.
    """
    new_ids = {
        each["message_id"]: f"<{_fill_pattern(pattern, rng)}@{each['message_id'].partition('@')[2]}"
        for each in mail.messages
    }
    messages = [{**each, "message_id": new_ids[each["message_id"]]} for each in mail.messages]
    scenarios = [
        each.model_copy(update={"message_ids": tuple(new_ids[source] for source in each.message_ids)})
        for each in mail.scenarios
    ]
    return replace(mail, messages=messages, scenarios=ScenarioSet.of(scenarios))


def _fill_pattern(pattern: str, rng: Rng) -> str:
    return "".join(rng.pick(_PLACEHOLDERS[sign]) if sign in _PLACEHOLDERS else sign for sign in pattern)


@dataclass(frozen=True, slots=True)
class DomainReplacement:
    """Replace the domain of a company in texts."""

    domain: str
    other: str

    def __call__(self, text: str) -> str:
        return text.replace(self.domain, self.other)


class MailboxAsDocuments:
    """A mailbox in the role of a document index, to generate examples for the documents environment."""

    def __init__(self, index: MailIndex, inbox: str) -> None:
        self._index, self._inbox = index, inbox
        self._ids: dict[str, str] = {}

    @classmethod
    def environment(cls, index: MailIndex, scenario: Scenario) -> DocumentsEnvironment:
        """Return the documents environment over the scenario's mailbox."""
        named = {
            "message_ids": (),
            "document_ids": tuple(map(to_document_id, scenario.message_ids)),
            "inbox_address": None,
        }
        about = scenario.model_copy(update=named)
        return DocumentsEnvironment(
            cls(index, str(scenario.inbox_address)), about, MAX_TURNS, reasoning=False, marks=False
        )

    def search(self, query: str, *, limit: int = 10) -> list[DocumentHit]:
        """Search as `DocumentIndex.search`, with as many of the first words as some message contains."""
        words, hits = query.split(), list[Hit]()
        while words and not hits:
            hits = self._index.search(self._inbox, words, limit=limit)
            words.pop()
        self._ids |= {to_document_id(hit.message_id): hit.message_id for hit in hits}
        return [_to_document_hit(hit, score=1 / place) for place, hit in enumerate(hits, 1)]

    def read(self, document_id: str) -> Document:
        """Read a document as `DocumentIndex.read`."""
        try:
            message = self._index.read(self._inbox, self._ids.get(document_id, document_id))
        except MessageNotFoundError as error:
            raise DocumentNotFoundError(error.code, str(error)) from None
        return Document(to_document_id(message.message_id), message.subject, message.body, "", {})

    def head(self, document_id: str) -> Document:
        """Read a document without its text as `DocumentIndex.head`."""
        return replace(self.read(document_id), text="")


def _to_document_hit(hit: Hit, score: float) -> DocumentHit:
    document_id = to_document_id(hit.message_id)
    return DocumentHit(document_id, f"{document_id}#0", hit.subject, hit.snippet, score, None, None)


def to_document_id(message_id: str) -> str:
    """Return the id of the document for a message."""
    return f"doc-{message_id[1:].partition('@')[0]}"


Part = Literal["search", "searches", "choice", "answer", "whole"]


@dataclass(frozen=True, slots=True)
class EpisodeFormat:
    """How episodes are turned into examples: whole or shortened.

    With less context, a model learns sooner what to attend to, and sees more episodes in the same time.
    """

    share: float
    """Share of the questions, or messages, that get an example in this format."""
    prompt: Literal["question", "told", "whole"]
    """The prompt: only the question; the system prompt and the question; or both with the tool descriptions."""
    hits: int
    """Maximum number of hits per search."""
    part: Part = "whole"
    """The part of the episode:

    - `search`: up to the first search that is trained on.
    - `searches`: up to the last search, or to the answer if that search found nothing.
    - `choice`: the searches and the turn after them, if there are several hits to choose from.
    - `answer`: the last read, without training on it, and the answer.
    - `whole`: the whole episode."""
    kinds: frozenset[str] = frozenset()
    """Kinds of questions in this format; all if empty."""


_HARD = frozenset({"who", "which", "who decided", "why", "yes or no", "before a date", "what changed", "latest"})
SKILLS = (
    EpisodeFormat(1.0, "question", 4, "search"),
    EpisodeFormat(0.7, "question", 4, "search", _HARD),
    EpisodeFormat(1.0, "question", 4, "choice"),
    EpisodeFormat(0.7, "question", 4, "choice", _HARD),
    EpisodeFormat(1.0, "question", 4, "answer"),
    EpisodeFormat(0.7, "question", 4, "answer"),
    EpisodeFormat(1.0, "question", 4, "answer", _HARD),
    EpisodeFormat(0.2, "question", 3),
    EpisodeFormat(0.1, "told", 5),
    EpisodeFormat(0.06, "whole", 10),
)
"""Formats of the first stage, mostly for one skill at a time."""
EPISODES = (EpisodeFormat(0.3, "question", 3), EpisodeFormat(0.3, "told", 5), EpisodeFormat(0.4, "whole", 10))
"""Formats of the second stage."""
REMINDERS = (EpisodeFormat(0.5, "question", 4, "answer"), EpisodeFormat(0.5, "question", 4, "answer", _HARD))
"""Formats without errors for the second stage, so that the skill to take an answer from a text is not lost."""
UNFAMILIAR = (
    EpisodeFormat(0.1, "question", 4, "searches"),
    EpisodeFormat(0.02, "told", 5, "searches"),
    EpisodeFormat(0.01, "whole", 10, "searches"),
)
"""Formats for the second stage with questions in words of any message, to learn to search for what is asked about. A
model that only knows questions about synthetic mail searches for names from those, whatever it is asked."""
_OPENINGS = ("Who", "What", "When", "Where", "Which", "Why", "How", "How many", "Did", "Does", "Is", "Has", "What did")
_SENTENCE = re.compile(r"[A-Z][^.?!:;\n<>]{20,100}")
_WORD = re.compile(r"[^\W\d_]{4,}")
_NAME = re.compile(r"[A-Z][\w'\u2019-]+(?: [A-Z][\w'\u2019-]+)*")
_RARE, _RARE_WORDS, _RARE_TOKENS = 0.5, (1, 3), (2, 4)  # probability of a made-up name, its words, tokens per word
_DOCUMENT_SHARE = 0.2
_STRAY = 0.1  # probability that an episode ends with stray tokens in a call; only the tokens around them are trained on
_AT_START, _REPEATED = 0.5, 0.5  # probability of stray tokens at the start of a text, or else of repeated tokens
_TRAINED_RESULTS, _RESULT_WEIGHT = (
    0.3,
    0.15,
)  # share of the tokens of tool results that are trained on, and their weight
_DOMAIN_LENGTH = (5, 12)  # letters
_DOMAIN_ENDS = (".example", ".example", ".com", ".org", ".co.uk", "")


@dataclass(frozen=True, slots=True)
class EpisodeExample:
    """One example: an episode of the expert, or a part of one."""

    scenario: Scenario
    format: EpisodeFormat
    example: Example
    is_whole: bool
    """The example contains the episode from question to answer."""
    errors: list[ErrorKind]
    """The deliberate errors of the expert."""
    domain: str
    """Domain of the company in this example."""


@dataclass(frozen=True, slots=True)
class _PlayedTurn:
    """One turn of the expert, with its result."""

    move: ExpertTurn
    result: str

    def is_one_of(self, *names: str) -> bool:
        """Return True if the turn calls one of these tools."""
        return self.move.call.name in names


@dataclass(slots=True)
class EpisodeGenerator:
    """Generate examples from the questions of a company."""

    tokenizer: Any
    seed: int
    chat: ChatFormat = field(init=False)
    _words: list[int] = field(init=False)
    """Ids of the tokens that consist of letters and digits only."""

    def __post_init__(self) -> None:
        self.chat = ChatFormat(self.tokenizer)
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        self._words = sorted(each for word, each in vocabulary.items() if word.isascii() and word.isalnum())

    def generate(
        self, company: PracticeCompany, formats: Sequence[EpisodeFormat], *, makes_errors: bool
    ) -> Iterator[EpisodeExample]:
        """Yield examples of each question, in some of the formats; the expert's errors differ between them.

        The company has another domain in each example, so that the model does not memorize it.
        """
        for scenario in company.mail.scenarios:
            for number, episode_format in enumerate(formats):
                rng = Rng(self.seed, "episode" if makes_errors else "skill", scenario.id, str(number))
                if not rng.chance(episode_format.share) or (
                    episode_format.kinds and scenario.kind not in episode_format.kinds
                ):
                    continue
                yield from self._make_example(
                    company,
                    *self._start_episode(company, scenario, rng, makes_errors=makes_errors),
                    episode_format,
                    rng,
                )

    def generate_unfamiliar(
        self, company: PracticeCompany, formats: Sequence[EpisodeFormat]
    ) -> Iterator[EpisodeExample]:
        """Yield examples of searches for questions made from sentences of any message, in some of the formats."""
        last = {str(each.inbox_address): each for each in company.mail.scenarios}
        anything = frozenset(message["message_id"] for message in company.mail.messages)
        for message in company.mail.messages:
            inbox = next((each for each in (message["from"], *message["to"], *message["cc"]) if each in last), None)
            if inbox is None:
                continue
            for number, episode_format in enumerate(formats):
                rng = Rng(self.seed, "unfamiliar", message["message_id"], str(number))
                found = self._invent_question(message["body"], rng) if rng.chance(episode_format.share) else None
                if found:
                    question, about = found
                    changed = {"question": question, "message_ids": (message["message_id"],)}
                    scenario = last[inbox].model_copy(update=changed)
                    environment = EmailEnvironment(company.index, scenario, MAX_TURNS, **EmailEnvironment.for_tiny)
                    expert = ScriptedExpert(
                        scenario, QuestionBackground(about, "", (), ()), anything, MAIL, rng, makes_errors=False
                    )
                    yield from self._make_example(company, environment, expert, episode_format, rng)

    def _invent_question(self, body: str, rng: Rng) -> tuple[str, str] | None:
        """Make a question from a sentence, and return it with its topic: the longest name, or else the longest word."""
        sentences = _SENTENCE.findall(body)
        if not sentences:
            return None
        first, _, rest = rng.pick(sentences).partition(" ")
        about = max(_NAME.findall(rest) or _WORD.findall(rest), key=len, default="")
        if not about:
            return None
        if rng.chance(_RARE):
            rare = " ".join(
                self.tokenizer.decode([rng.pick(self._words) for _ in range(rng.between(*_RARE_TOKENS))]).capitalize()
                for _ in range(rng.between(*_RARE_WORDS))
            )
            rest, about = rest.replace(about, rare), rare
        return f"{rng.pick(_OPENINGS)} {first.lower()} {rest.strip()}?", about

    def _make_example(
        self,
        company: PracticeCompany,
        environment: Environment,
        expert: ScriptedExpert,
        episode_format: EpisodeFormat,
        rng: Rng,
    ) -> Iterator[EpisodeExample]:
        """Yield the example of an episode in one format; nothing if the episode has no such part."""
        turns = _select_part(list(_play(environment, expert, episode_format, rng)), episode_format.part)
        if turns:
            name = "".join(rng.pick(string.ascii_lowercase) for _ in range(rng.between(*_DOMAIN_LENGTH)))
            replace_domain = DomainReplacement(company.domain, name + rng.pick(_DOMAIN_ENDS))
            example, is_cut = self._tokenize(
                self._prompt(environment, episode_format, replace_domain), turns, replace_domain, rng
            )
            is_whole = episode_format.part == "whole" and not is_cut
            yield EpisodeExample(
                environment.scenario, episode_format, example, is_whole, expert.errors, replace_domain.other
            )

    def _start_episode(
        self, company: PracticeCompany, scenario: Scenario, rng: Rng, *, makes_errors: bool
    ) -> tuple[Environment, ScriptedExpert]:
        background = company.mail.backgrounds[scenario.id]
        if rng.chance(_DOCUMENT_SHARE):
            right = frozenset(map(to_document_id, scenario.message_ids))
            others = {to_document_id(source): answer for source, answer in company.answers.items()}
            expert = ScriptedExpert(scenario, background, right, DOCUMENTS, rng, makes_errors, others)
            return MailboxAsDocuments.environment(company.index, scenario), expert
        environment = EmailEnvironment(company.index, scenario, MAX_TURNS, **EmailEnvironment.for_tiny)
        right = frozenset(scenario.message_ids)
        return environment, ScriptedExpert(scenario, background, right, MAIL, rng, makes_errors, company.answers)

    def _tokenize(
        self, prompt: tuple[int, ...], turns: Sequence[_PlayedTurn], replace_domain: DomainReplacement, rng: Rng
    ) -> tuple[Example, bool]:
        """Return turns as tokens with weights, and True if stray tokens ended the episode early."""
        ids, weights = [*prompt], [0.0] * len(prompt)
        for turn in turns:
            if turn.move.is_learned and rng.chance(_STRAY):
                tokens, trained = self._with_stray_tokens(turn.move.call, replace_domain, rng)
                return Example([*ids, *tokens], [*weights, *trained]), True
            tokens = [*self._encode(replace_domain(format_call(turn.move.call))), *self.chat.stop_ids]
            ids += tokens
            weights += [float(turn.move.is_learned)] * len(tokens)
            if turn is not turns[-1]:
                glue = self.chat.encode_results(
                    [turn.move.call], [replace_domain(turn.result)], self.chat.stop_ids[0]
                ).ids
                ids += glue
                weights += [_RESULT_WEIGHT if rng.chance(_TRAINED_RESULTS) else 0.0 for _ in glue]
        return Example(ids, weights), False

    def _with_stray_tokens(
        self, call: Call, replace_domain: DomainReplacement, rng: Rng
    ) -> tuple[list[int], list[float]]:
        """Return a call with a stray token, or repeated ones, in one of its texts, which is closed right after them.

        Sampling makes such mistakes, and a policy that has never seen one does not recover from it.
        """
        text = replace_domain(format_call(call))
        texts = [each for value in call.arguments.values() for each in (value if isinstance(value, list) else [value])]
        chosen = replace_domain(json.dumps(rng.pick(texts), ensure_ascii=False))
        start = text.rindex(chosen) + 1
        end = start + len(chosen) - 2
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        inside = [place for place, (first, _) in enumerate(encoded["offset_mapping"]) if start <= first < end]
        if not inside:
            return [*encoded["input_ids"], *self.chat.stop_ids], [1.0] * (len(encoded["input_ids"]) + 1)
        cut = inside[0] if rng.chance(_AT_START) else rng.pick(inside)
        before = encoded["input_ids"][:cut]
        stray = [rng.pick(self._words)]
        if cut > inside[0] and rng.chance(_REPEATED):
            stray = before[-rng.between(1, min(3, cut - inside[0])) :] * rng.between(1, 3)
        after = [*self._encode(text[end:]), *self.chat.stop_ids]
        return [*before, *stray, *after], [*[1.0] * len(before), *[0.0] * len(stray), *[1.0] * len(after)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _prompt(
        self, environment: Environment, episode_format: EpisodeFormat, replace_domain: DomainReplacement
    ) -> tuple[int, ...]:
        tools = environment.toolbox.schemas() if episode_format.prompt == "whole" else []
        if episode_format.prompt != "question":
            return self.chat.encode_prompt(
                environment.system_prompt(), replace_domain(environment.user_prompt()), tools
            ).ids
        ids = self.chat.encode_prompt(environment.system_prompt(), environment.scenario.question, tools).ids
        return ids[ids.index(ids[0], 1) :]  # from the start of the second message


def _play(
    environment: Environment, expert: ScriptedExpert, episode_format: EpisodeFormat, rng: Rng
) -> Iterator[_PlayedTurn]:
    """Run one episode of the expert, from the first search to the answer."""
    moves = expert.play()
    move = next(moves)
    while True:
        result = _limit_hits(environment.toolbox.run(move.call), episode_format.hits, expert.right_sources, rng)
        yield _PlayedTurn(move, result)
        if environment.finished:
            return
        move = moves.send(result)


def _select_part(turns: Sequence[_PlayedTurn], part: Part) -> Sequence[_PlayedTurn]:
    """Return the part of an episode for an example; an empty list if it has no such part."""
    trained = [turn for turn in turns if turn.move.is_learned]
    searches = list(takewhile(lambda turn: turn.is_one_of(MAIL.search, DOCUMENTS.search), trained))
    reads = [turn for turn in turns if turn.is_one_of(MAIL.read, DOCUMENTS.read)]
    match part:
        case "search":
            return turns[: turns.index(trained[0]) + 1]
        case "searches" if searches and parse_hits(searches[-1].result):
            return turns[: turns.index(searches[-1]) + 1]
        case "searches":
            return turns
        case "choice" if searches and len(parse_hits(searches[-1].result)) > 1:
            return trained[: len(searches) + 1]
        case "choice":
            return []
        case "answer" if reads:
            return [replace(reads[-1], move=ExpertTurn(reads[-1].move.call, is_learned=False)), turns[-1]]
        case "answer":
            return []
        case "whole":
            return turns


def iterate_episode_texts(company: PracticeCompany) -> Iterator[str]:
    """Yield the texts that occur in episodes about a company, beside its mail."""
    for scenario in company.mail.scenarios:
        yield scenario.question
        for tools in (MAIL, DOCUMENTS):
            words, source = scenario.question.split()[-3:], scenario.message_ids[0]
            calls = (
                tools.search_call(words),
                tools.read_call(source),
                tools.answer_call(scenario.answer, source),
            )
            yield from map(format_call, calls)
        mailbox = EmailEnvironment(company.index, scenario, MAX_TURNS, **EmailEnvironment.for_tiny)
        yield mailbox.toolbox.run(MAIL.search_call(scenario.question.rstrip("?").split()[-1:]))[:_HITS_LENGTH]
    first = company.mail.scenarios.scenarios[0]
    for environment in (
        EmailEnvironment(company.index, first, MAX_TURNS, **EmailEnvironment.for_tiny),
        MailboxAsDocuments.environment(company.index, first),
    ):
        prompts = environment.system_prompt(), environment.user_prompt()
        yield from [*prompts, *map(json.dumps, environment.toolbox.schemas())] * _REPETITIONS


def format_call(call: Call) -> str:
    """Return a call as a model writes it."""
    return (
        f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments}, ensure_ascii=False)}\n</tool_call>"
    )


def _limit_hits(result: str, most: int, right: frozenset[str], rng: Rng) -> str:
    """Return a search result with at most `most` hits, with a correct one among them if there is one."""
    found = parse_hits(result)
    if len(found) <= most:
        return result
    kept = [hit for hit in found if hit.source in right][:1]
    kept += rng.sample([hit for hit in found if hit not in kept], most - len(kept))
    return "\n".join(str(hit) for hit in found if hit in kept)
