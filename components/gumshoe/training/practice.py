"""Practice: episodes of the expert in invented mailboxes and document collections, as examples to learn from."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gumshoe.agent.chat_format import ChatFormat
from gumshoe.agent.email import EmailEnvironment
from gumshoe.agent.environment import Environment, Record
from gumshoe.agent.tools import Call, Toolbox, ToolError
from gumshoe.mail.build import build_index
from gumshoe.mail.index import Hit, MailIndex, MessageNotFoundError
from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.dice import Dice
from gumshoe.synthesis.difficulty import Level
from gumshoe.synthesis.mail import MAIL as MAIL_FILE
from gumshoe.synthesis.mail import SyntheticMail, synthesize_mail, write_mail
from gumshoe.training.teacher import DOCUMENTS, MAIL, Slip, Teacher, listed
from gumshoe.training.warm_start import Example

MAX_TURNS = 10
_MAILBOXES, _MESSAGES = 3, 900  # small and many, so that no name or address is worth learning by heart
_CONTEXT_WEIGHT = 0.03  # of the loss on what the policy does not say itself,
_CONTEXT_STRIDE = 4  # and on every fourth token of it only, which costs less
_TOLD_OFTEN = 30  # so that a tokenizer has whole words for it
_DOCUMENTS = """\
You answer questions from a collection of documents. Today is {today}.

Use the tools to find the answer: search the documents, read what looks right, and return the answer with the ids of \
the documents that hold it. Make exactly one call in each turn. You have at most {turns} turns. If the answer is not \
to be found, return "I don't know" and no ids."""


@dataclass(frozen=True, slots=True)
class Company:
    """Invented mail with its index."""

    mail: SyntheticMail
    index: MailIndex

    @classmethod
    def invent(
        cls, seed: int, level: Level, directory: Path, *, mailboxes: int = _MAILBOXES, messages: int = _MESSAGES
    ) -> "Company":
        """Invent mail and index it in a directory."""
        mail = synthesize_mail(seed, mailboxes, messages, level)
        write_mail(mail, directory)
        build_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
        return cls(mail, MailIndex(directory / "index"))


class Collection:
    """A mailbox taken for a collection of documents: the tools of `gumshoe.documents`, to practise with."""

    def __init__(self, index: MailIndex, scenario: Scenario) -> None:
        self.scenario = scenario
        self.record = Record()
        self.finished = False
        self.toolbox = Toolbox([self.search_documents, self.read_document, self.return_final_answer])
        self._index, self._ids = index, dict[str, str]()

    def system_prompt(self) -> str:
        """What day it is, and how many turns there are."""
        return _DOCUMENTS.format(today=f"{self.scenario.query_date:%A, %Y-%m-%d}", turns=MAX_TURNS)

    def search_documents(self, query: str) -> str:
        """Search the documents: up to ten passages, the best first.

        Args:
            query: What to look for, in a few words.
        """
        words, hits = query.split(), list[Hit]()
        while words and not hits:
            hits = self._index.search(str(self.scenario.inbox_address), words)
            words.pop()
        self._ids |= {document(hit.message_id): hit.message_id for hit in hits}
        return (
            "\n".join(f"{document(hit.message_id)} {hit.subject}\n  {hit.snippet}" for hit in hits) or "Nothing found."
        )

    def read_document(self, document_id: str) -> str:
        """Read one document.

        Args:
            document_id: The id of a document, as a search lists it.
        """
        try:
            message = self._index.read(str(self.scenario.inbox_address), self._ids.get(document_id, document_id))
        except MessageNotFoundError:
            raise ToolError(f"there is no document {document_id!r}; use an id as a search lists it") from None
        return f"{message.subject}\n\n{message.body}"

    def return_final_answer(self, answer: str, document_ids: list[str]) -> str:  # noqa: ARG002
        """Give the answer to the question. This ends the conversation.

        Args:
            answer: The answer, as short as it can be; "I don't know" if it is not to be found.
            document_ids: The ids of the documents that hold the answer.
        """
        self.finished = True
        return ""


def document(message_id: str) -> str:
    """The id of the document that a message is taken for."""
    return f"doc-{message_id[1:].partition('@')[0]}"


@dataclass(frozen=True, slots=True)
class Form:
    """How episodes are shown to a model: whole, or shortened so that more of them are seen in the same time."""

    share: float
    tools: bool
    """Whether the prompt describes the tools."""
    hits: int
    """Most hits of a search that are kept."""


FORMS = (Form(0.65, False, 3), Form(0.2, False, 10), Form(0.15, True, 10))
_DOCUMENT_SHARE = 0.15


@dataclass(slots=True)
class Practice:
    """Makes examples of a company's questions."""

    tokenizer: Any
    seed: int
    chat: ChatFormat = field(init=False)

    def __post_init__(self) -> None:
        self.chat = ChatFormat(self.tokenizer)

    def examples(self, company: Company) -> Iterator[tuple[Example, list[Slip]]]:
        """An example of each question, and what was done wrong in it."""
        for scenario in company.mail.scenarios:
            dice = Dice(self.seed, "episode", scenario.id)
            form = dice.weighted({form: form.share for form in FORMS})
            background = company.mail.backgrounds[scenario.id]
            environment: Environment
            if dice.chance(_DOCUMENT_SHARE):
                environment = Collection(company.index, scenario)
                right = frozenset(map(document, scenario.message_ids))
                teacher = Teacher(scenario, background, right, DOCUMENTS, dice)
            else:
                environment = EmailEnvironment(company.index, scenario, MAX_TURNS)
                teacher = Teacher(scenario, background, frozenset(scenario.message_ids), MAIL, dice)
            yield self._played(environment, teacher, form, dice), teacher.slips

    def _played(self, environment: Environment, teacher: Teacher, form: Form, dice: Dice) -> Example:
        """One episode of the expert, as the tokens of it and what each counts."""
        tools = environment.toolbox.schemas() if form.tools else []
        ids = self.chat.prompt_ids(environment.system_prompt(), environment.scenario.question, tools)
        offset = dice.below(_CONTEXT_STRIDE)
        weights = [_context_weight(place + offset) for place in range(len(ids))]
        moves = teacher.moves()
        move = next(moves)
        while True:
            said = [*self.tokenizer.encode(written(move.call), add_special_tokens=False), *self.chat.stop_ids]
            ids += said
            weights += [float(move.learned)] * len(said)
            result = _shortened(environment.toolbox.run(move.call), form.hits, teacher.right, dice)
            if environment.finished:
                return Example(ids, weights)
            glue = self.chat.glue_ids(result)
            weights += [_context_weight(place + offset) for place in range(len(ids), len(ids) + len(glue))]
            ids += glue
            move = moves.send(result)


def _context_weight(place: int) -> float:
    return 0.0 if place % _CONTEXT_STRIDE else _CONTEXT_WEIGHT


def spoken(company: Company) -> Iterator[str]:
    """What is said in episodes about a company, beside its mail."""
    for scenario in company.mail.scenarios:
        yield scenario.question
        for dialect in (MAIL, DOCUMENTS):
            words, source = scenario.question.split()[-3:], scenario.message_ids[0]
            calls = (dialect.searching(words), dialect.reading(source), dialect.answering(scenario.answer, source))
            yield from map(written, calls)
    first = company.mail.scenarios.scenarios[0]
    for environment in (EmailEnvironment(company.index, first, MAX_TURNS), Collection(company.index, first)):
        yield from [environment.system_prompt(), *map(json.dumps, environment.toolbox.schemas())] * _TOLD_OFTEN


def written(call: Call) -> str:
    """A call as a model writes it."""
    return (
        f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments}, ensure_ascii=False)}\n</tool_call>"
    )


def _shortened(result: str, hits: int, right: frozenset[str], dice: Dice) -> str:
    """A search's result with so many of its hits, one that is right among them if there was any."""
    found = listed(result)
    if len(found) <= hits:
        return result
    kept = [hit for hit in found if hit.source in right][:1]
    others = [hit for hit in found if hit not in kept]
    kept += dice.sample(others, hits - len(kept))
    return "\n".join(f"{hit.source} {hit.head}\n  {hit.snippet}" for hit in found if hit in kept)
