"""Practice: episodes of the expert in invented mailboxes and document collections, as examples to learn from."""

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
from gumshoe.mail.index import Hit, MailIndex, MessageNotFoundError
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.synthesis.difficulty import Level
from gumshoe.synthesis.mail_questions import QuestionBackground
from gumshoe.synthesis.mailboxes import MAIL_FILE, SyntheticMail, synthesize_mail, write_mail
from gumshoe.synthesis.rng import Rng
from gumshoe.tiny.pretraining import Example
from gumshoe.training.sft.scripted_expert import DOCUMENTS, MAIL, ErrorKind, ExpertTurn, ScriptedExpert, parse_hits

MAX_TURNS = 10
_MAILBOXES, _MESSAGES = 3, 900  # small and many, so that no name or address is worth learning by heart
_OTHER_IDS = 0.5  # share of the companies whose messages have ids of another form than invented mail has
_ID_FORMS = (  # of mail systems: # is a digit, ? a hexadecimal one, * a letter or a digit
    "#######.#############.JavaMail.root",
    "????????-????-????-????-????????????",
    "CA*******************",
    "##############.GA####",
    "????????.#######",
)
_SIGNS = {"#": string.digits, "?": string.digits + "abcdef", "*": string.ascii_letters + string.digits}
_HITS_TOLD = 400  # characters
_TOLD_OFTEN = 30  # so that a tokenizer has whole words for it


@dataclass(frozen=True)
class PracticeCompany:
    """Invented mail with its index."""

    mail: SyntheticMail
    index: MailIndex

    @classmethod
    def invent(
        cls, seed: int, level: Level, directory: Path, *, mailboxes: int = _MAILBOXES, messages: int = _MESSAGES
    ) -> "PracticeCompany":
        """Invent mail and index it in a directory."""
        mail = synthesize_mail(seed, mailboxes, messages, level)
        dice = Rng(seed, "ids")
        if dice.chance(_OTHER_IDS):
            mail = replace_ids(mail, dice.pick(_ID_FORMS), dice)
        write_mail(mail, directory)
        build_mail_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
        return cls(mail, MailIndex(directory / "index"))

    @cached_property
    def answers(self) -> dict[str, str]:
        """A question's answer by each message that holds it."""
        return {source: each.answer for each in self.mail.scenarios for source in each.message_ids}

    @property
    def domain(self) -> str:
        """Where its people have their mail."""
        return str(self.mail.scenarios.scenarios[0].inbox_address).partition("@")[2]


def replace_ids(mail: SyntheticMail, form: str, dice: Rng) -> SyntheticMail:
    """The same mail, the ids of its messages made anew by a form.

    Where all ids look alike, a model takes their looks for what tells a message from a document.
    """
    made = {
        each["message_id"]: f"<{_signs(form, dice)}@{each['message_id'].partition('@')[2]}" for each in mail.messages
    }
    messages = [{**each, "message_id": made[each["message_id"]]} for each in mail.messages]
    scenarios = [
        each.model_copy(update={"message_ids": tuple(made[source] for source in each.message_ids)})
        for each in mail.scenarios
    ]
    return replace(mail, messages=messages, scenarios=ScenarioSet.of(scenarios))


def _signs(form: str, dice: Rng) -> str:
    return "".join(dice.pick(_SIGNS[sign]) if sign in _SIGNS else sign for sign in form)


@dataclass(frozen=True, slots=True)
class DomainReplacement:
    """Text in which a company has another domain."""

    domain: str
    other: str

    def __call__(self, text: str) -> str:
        return text.replace(self.domain, self.other)


class MailboxAsDocuments:
    """A mailbox taken for a collection of documents, to practise the tools of the documents environment with."""

    def __init__(self, index: MailIndex, inbox: str) -> None:
        self._index, self._inbox = index, inbox
        self._ids: dict[str, str] = {}

    @classmethod
    def environment(cls, index: MailIndex, scenario: Scenario) -> DocumentsEnvironment:
        """The documents environment over the scenario's mailbox."""
        named = {
            "message_ids": (),
            "document_ids": tuple(map(to_document_id, scenario.message_ids)),
            "inbox_address": None,
        }
        about = scenario.model_copy(update=named)
        return DocumentsEnvironment(cls(index, str(scenario.inbox_address)), about, MAX_TURNS, reasoning=False)

    def search(self, query: str, *, limit: int = 10) -> list[DocumentHit]:
        """As `DocumentIndex.search`, of as many of the words, from the first, as one message has."""
        words, hits = query.split(), list[Hit]()
        while words and not hits:
            hits = self._index.search(self._inbox, words, limit=limit)
            words.pop()
        self._ids |= {to_document_id(hit.message_id): hit.message_id for hit in hits}
        return [_taken_for(hit, score=1 / place) for place, hit in enumerate(hits, 1)]

    def read(self, document_id: str) -> Document:
        """As `DocumentIndex.read`."""
        try:
            message = self._index.read(self._inbox, self._ids.get(document_id, document_id))
        except MessageNotFoundError as error:
            raise DocumentNotFoundError(error.code, str(error)) from None
        return Document(to_document_id(message.message_id), message.subject, message.body, "", {})

    def head(self, document_id: str) -> Document:
        """As `DocumentIndex.head`."""
        return replace(self.read(document_id), text="")


def _taken_for(hit: Hit, score: float) -> DocumentHit:
    document_id = to_document_id(hit.message_id)
    return DocumentHit(document_id, f"{document_id}#0", hit.subject, hit.snippet, score, None, None)


def to_document_id(message_id: str) -> str:
    """The id of the document that a message is taken for."""
    return f"doc-{message_id[1:].partition('@')[0]}"


Part = Literal["search", "searches", "choice", "answer", "whole"]


@dataclass(frozen=True, slots=True)
class EpisodeFormat:
    """How episodes are shown to a model: as they are, or shortened.

    Where to look is learned sooner where there is less to look at, and more episodes are seen in the same time.
    """

    share: float
    """Of the questions, or the messages, that are practised so."""
    prompt: Literal["question", "told", "whole"]
    """Only the question; what the model is told and the question; or all that, and the tools described."""
    hits: int
    """Most hits of a search that are kept."""
    part: Part = "whole"
    """All up to the first search that is learned; or to the last one, and to the answer where that found nothing;
    searches and what is read or answered then, where there are hits to choose from; the last read, which is not learned
    here, and the answer; or the whole episode."""
    kinds: frozenset[str] = frozenset()
    """Of questions that are practised so; all, where none is named."""


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
"""What is practised first: mostly one thing at a time."""
EPISODES = (EpisodeFormat(0.3, "question", 3), EpisodeFormat(0.3, "told", 5), EpisodeFormat(0.4, "whole", 10))
"""What is practised then."""
REMINDERS = (EpisodeFormat(0.5, "question", 4, "answer"), EpisodeFormat(0.5, "question", 4, "answer", _HARD))
"""What is practised beside episodes of one that errs, so that how to take an answer from a text is not lost."""
UNFAMILIAR = (
    EpisodeFormat(0.1, "question", 4, "searches"),
    EpisodeFormat(0.02, "told", 5, "searches"),
    EpisodeFormat(0.01, "whole", 10, "searches"),
)
"""What is practised then too, with questions in words of any message: to search for what is asked about. One that only
knows the questions of invented mail searches for what those would name, whatever it is asked."""
_OPENINGS = ("Who", "What", "When", "Where", "Which", "Why", "How", "How many", "Did", "Does", "Is", "Has", "What did")
_SENTENCE = re.compile(r"[A-Z][^.?!:;\n<>]{20,100}")
_WORD = re.compile(r"[^\W\d_]{4,}")
_NAME = re.compile(r"[A-Z][\w'\u2019-]+(?: [A-Z][\w'\u2019-]+)*")
_ODD, _ODD_WORDS, _ODD_TOKENS = 0.5, (1, 3), (2, 4)  # how often it is about a name that nobody has, and its length
_DOCUMENT_SHARE = 0.2
_BLOT = 0.1  # how often an episode ends with a stray token in a call, which is not learned, but how to go on after it
_AT_ONCE, _REPEATED = 0.5, 0.5  # of those: where a text begins, and else by repeating what was said
_READ, _READING = 0.3, 0.15  # share of what tools give that is learned too, and how much each token of it counts
_DOMAIN = (5, 12)  # letters
_DOMAIN_ENDS = (".example", ".example", ".com", ".org", ".co.uk", "")


@dataclass(frozen=True, slots=True)
class EpisodeExample:
    """One episode of the expert, or a part of one."""

    scenario: Scenario
    format: EpisodeFormat
    example: Example
    is_whole: bool
    """It goes from the question to the answer."""
    errors: list[ErrorKind]
    """What was done wrong on purpose."""
    domain: str
    """What the company's domain is called in it."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One call of the expert, and what came of it."""

    move: ExpertTurn
    result: str

    def is_one_of(self, *names: str) -> bool:
        return self.move.call.name in names


@dataclass(slots=True)
class EpisodeGenerator:
    """Makes lessons of a company's questions."""

    tokenizer: Any
    seed: int
    chat: ChatFormat = field(init=False)
    _words: list[int] = field(init=False)
    """Tokens of nothing but letters and digits."""

    def __post_init__(self) -> None:
        self.chat = ChatFormat(self.tokenizer)
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        self._words = sorted(each for word, each in vocabulary.items() if word.isascii() and word.isalnum())

    def generate(
        self, company: PracticeCompany, forms: Sequence[EpisodeFormat], *, errs: bool
    ) -> Iterator[EpisodeExample]:
        """Each question in some of the forms; what is done wrong, where the expert errs, differs.

        In each lesson the company has another domain, so that nobody learns by heart what stands in ids.
        """
        for scenario in company.mail.scenarios:
            for number, form in enumerate(forms):
                dice = Rng(self.seed, "episode" if errs else "skill", scenario.id, str(number))
                if not dice.chance(form.share) or (form.kinds and scenario.kind not in form.kinds):
                    continue
                yield from self._lesson(company, *self._begun(company, scenario, dice, errs=errs), form, dice)

    def generate_unfamiliar(self, company: PracticeCompany, forms: Sequence[EpisodeFormat]) -> Iterator[EpisodeExample]:
        """Searches for what a question is about that is made of a sentence of any message, in some of the forms."""
        last = {str(each.inbox_address): each for each in company.mail.scenarios}
        anything = frozenset(message["message_id"] for message in company.mail.messages)
        for message in company.mail.messages:
            inbox = next((each for each in (message["from"], *message["to"], *message["cc"]) if each in last), None)
            if inbox is None:
                continue
            for number, form in enumerate(forms):
                dice = Rng(self.seed, "unfamiliar", message["message_id"], str(number))
                made = self._made_up(message["body"], dice) if dice.chance(form.share) else None
                if made:
                    question, about = made
                    changed = {"question": question, "message_ids": (message["message_id"],)}
                    scenario = last[inbox].model_copy(update=changed)
                    environment = EmailEnvironment(company.index, scenario, MAX_TURNS)
                    teacher = ScriptedExpert(
                        scenario, QuestionBackground(about, "", (), ()), anything, MAIL, dice, makes_errors=False
                    )
                    yield from self._lesson(company, environment, teacher, form, dice)

    def _made_up(self, body: str, dice: Rng) -> tuple[str, str] | None:
        """A question of a sentence, and what it is about: the longest name in it, or else the longest word."""
        sentences = _SENTENCE.findall(body)
        if not sentences:
            return None
        first, _, rest = dice.pick(sentences).partition(" ")
        about = max(_NAME.findall(rest) or _WORD.findall(rest), key=len, default="")
        if not about:
            return None
        if dice.chance(_ODD):
            odd = " ".join(
                self.tokenizer.decode([dice.pick(self._words) for _ in range(dice.between(*_ODD_TOKENS))]).capitalize()
                for _ in range(dice.between(*_ODD_WORDS))
            )
            rest, about = rest.replace(about, odd), odd
        return f"{dice.pick(_OPENINGS)} {first.lower()} {rest.strip()}?", about

    def _lesson(
        self,
        company: PracticeCompany,
        environment: Environment,
        teacher: ScriptedExpert,
        form: EpisodeFormat,
        dice: Rng,
    ) -> Iterator[EpisodeExample]:
        """What the expert does, in one form; nothing where that has no such part."""
        turns = _part(list(_played(environment, teacher, form, dice)), form.part)
        if turns:
            name = "".join(dice.pick(string.ascii_lowercase) for _ in range(dice.between(*_DOMAIN)))
            renamed = DomainReplacement(company.domain, name + dice.pick(_DOMAIN_ENDS))
            example, is_cut = self._example(self._prompt(environment, form, renamed), turns, renamed, dice)
            is_whole = form.part == "whole" and not is_cut
            yield EpisodeExample(environment.scenario, form, example, is_whole, teacher.errors, renamed.other)

    def _begun(
        self, company: PracticeCompany, scenario: Scenario, dice: Rng, *, errs: bool
    ) -> tuple[Environment, ScriptedExpert]:
        background = company.mail.backgrounds[scenario.id]
        if dice.chance(_DOCUMENT_SHARE):
            right = frozenset(map(to_document_id, scenario.message_ids))
            others = {to_document_id(source): answer for source, answer in company.answers.items()}
            teacher = ScriptedExpert(scenario, background, right, DOCUMENTS, dice, errs, others)
            return MailboxAsDocuments.environment(company.index, scenario), teacher
        environment = EmailEnvironment(company.index, scenario, MAX_TURNS)
        right = frozenset(scenario.message_ids)
        return environment, ScriptedExpert(scenario, background, right, MAIL, dice, errs, company.answers)

    def _example(
        self, prompt: tuple[int, ...], turns: Sequence[_Turn], renamed: DomainReplacement, dice: Rng
    ) -> tuple[Example, bool]:
        """Turns as tokens, and how much each counts; and whether a blot cut them short."""
        ids, weights = [*prompt], [0.0] * len(prompt)
        for turn in turns:
            if turn.move.is_learned and dice.chance(_BLOT):
                said, learned = self._blotted(turn.move.call, renamed, dice)
                return Example([*ids, *said], [*weights, *learned]), True
            said = [*self._encoded(renamed(format_call(turn.move.call))), *self.chat.stop_ids]
            ids += said
            weights += [float(turn.move.is_learned)] * len(said)
            if turn is not turns[-1]:
                glue = self.chat.encode_tool_result(renamed(turn.result)).ids
                ids += glue
                weights += [_READING if dice.chance(_READ) else 0.0 for _ in glue]
        return Example(ids, weights), False

    def _blotted(self, call: Call, renamed: DomainReplacement, dice: Rng) -> tuple[list[int], list[float]]:
        """A call with a stray token in one of its texts, or some that are repeated, after which the text is closed.

        Whoever samples makes such mistakes; a policy that has never seen one would not find its way out.
        """
        text = renamed(format_call(call))
        texts = [each for value in call.arguments.values() for each in (value if isinstance(value, list) else [value])]
        chosen = renamed(json.dumps(dice.pick(texts), ensure_ascii=False))
        start = text.rindex(chosen) + 1
        end = start + len(chosen) - 2
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        inside = [place for place, (first, _) in enumerate(encoded["offset_mapping"]) if start <= first < end]
        if not inside:
            return [*encoded["input_ids"], *self.chat.stop_ids], [1.0] * (len(encoded["input_ids"]) + 1)
        cut = inside[0] if dice.chance(_AT_ONCE) else dice.pick(inside)
        before = encoded["input_ids"][:cut]
        stray = [dice.pick(self._words)]
        if cut > inside[0] and dice.chance(_REPEATED):
            stray = before[-dice.between(1, min(3, cut - inside[0])) :] * dice.between(1, 3)
        after = [*self._encoded(text[end:]), *self.chat.stop_ids]
        return [*before, *stray, *after], [*[1.0] * len(before), *[0.0] * len(stray), *[1.0] * len(after)]

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _prompt(self, environment: Environment, form: EpisodeFormat, renamed: DomainReplacement) -> tuple[int, ...]:
        tools = environment.toolbox.schemas() if form.prompt == "whole" else []
        if form.prompt != "question":
            return self.chat.encode_prompt(environment.system_prompt(), renamed(environment.user_prompt()), tools).ids
        ids = self.chat.encode_prompt(environment.system_prompt(), environment.scenario.question, tools).ids
        return ids[ids.index(ids[0], 1) :]  # from where the second message begins


def _played(environment: Environment, teacher: ScriptedExpert, form: EpisodeFormat, dice: Rng) -> Iterator[_Turn]:
    """One episode of the expert, from the first search to the answer."""
    moves = teacher.play()
    move = next(moves)
    while True:
        result = _shown(environment.toolbox.run(move.call), form.hits, teacher.right_sources, dice)
        yield _Turn(move, result)
        if environment.finished:
            return
        move = moves.send(result)


def _part(turns: Sequence[_Turn], part: Part) -> Sequence[_Turn]:
    """What of an episode is practised; nothing where it has no such part."""
    learned = [turn for turn in turns if turn.move.is_learned]
    searches = list(takewhile(lambda turn: turn.is_one_of(MAIL.search, DOCUMENTS.search), learned))
    reads = [turn for turn in turns if turn.is_one_of(MAIL.read, DOCUMENTS.read)]
    match part:
        case "search":
            return turns[: turns.index(learned[0]) + 1]
        case "searches" if searches and parse_hits(searches[-1].result):
            return turns[: turns.index(searches[-1]) + 1]
        case "searches":
            return turns
        case "choice" if searches and len(parse_hits(searches[-1].result)) > 1:
            return learned[: len(searches) + 1]
        case "choice":
            return []
        case "answer" if reads:
            return [replace(reads[-1], move=ExpertTurn(reads[-1].move.call, is_learned=False)), turns[-1]]
        case "answer":
            return []
        case "whole":
            return turns


def iterate_episode_texts(company: PracticeCompany) -> Iterator[str]:
    """What is said in episodes about a company, beside its mail."""
    for scenario in company.mail.scenarios:
        yield scenario.question
        for dialect in (MAIL, DOCUMENTS):
            words, source = scenario.question.split()[-3:], scenario.message_ids[0]
            calls = (
                dialect.search_call(words),
                dialect.read_call(source),
                dialect.answer_call(scenario.answer, source),
            )
            yield from map(format_call, calls)
        mailbox = EmailEnvironment(company.index, scenario, MAX_TURNS)
        yield mailbox.toolbox.run(MAIL.search_call(scenario.question.rstrip("?").split()[-1:]))[:_HITS_TOLD]
    first = company.mail.scenarios.scenarios[0]
    for environment in (
        EmailEnvironment(company.index, first, MAX_TURNS),
        MailboxAsDocuments.environment(company.index, first),
    ):
        prompts = environment.system_prompt(), environment.user_prompt()
        yield from [*prompts, *map(json.dumps, environment.toolbox.schemas())] * _TOLD_OFTEN


def format_call(call: Call) -> str:
    """A call as a model writes it."""
    return (
        f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments}, ensure_ascii=False)}\n</tool_call>"
    )


def _shown(result: str, most: int, right: frozenset[str], dice: Rng) -> str:
    """A search's result with as many hits as are kept, one that is right among them if there was any."""
    found = parse_hits(result)
    if len(found) <= most:
        return result
    kept = [hit for hit in found if hit.source in right][:1]
    kept += dice.sample([hit for hit in found if hit not in kept], most - len(kept))
    return "\n".join(str(hit) for hit in found if hit in kept)
