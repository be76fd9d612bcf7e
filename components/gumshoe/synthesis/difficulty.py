"""What makes a question easy or hard to answer: from a mailbox, and as far as it applies, from a reference work."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["plain", "easy", "normal", "hard"]


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How much lies between a question and its answer. Shares and chances are from 0 to 1.

    Of a reference work, a matter is what an entry is about, a change is one between two editions, and a message that
    talks about settled facts is an article that does; it has `noise`, `facts`, `filler`, `echoes`, `changes`,
    `siblings`, `own_words`, `value_last`, `history`, `oblique` and `indirect`.
    """

    noise: float
    """Share of the messages that are about no matter: newsletters, notices, small talk."""
    facts: tuple[int, int]
    """Facts of a matter that the mail states."""
    filler: tuple[int, int]
    """Sentences round a fact that state none."""
    depth: int
    """Most messages that an answer quotes."""
    tables: float
    """Chance that a matter's first facts come in a table."""
    asked: float
    """How often a fact is the answer to a question, against 1 for plainly stated. The question, without the answer,
    is in the mailbox too."""
    passed_on: float
    """How often a fact is in a message from outside that somebody passes on, against 1 for plainly stated."""
    open_questions: int
    """Most messages, before anything is settled, that talk about a matter's facts."""
    echoes: float
    """Chance that a message talks about a settled fact without stating it."""
    changes: float
    """Chance that a fact of a matter changes."""
    approvals: float
    """Chance that something is asked for in a matter and granted or refused."""
    continues: float
    """Chance that a change comes as an answer in an old thread."""
    short_names: float
    """Chance that such an answer calls the matter by its short name: "the refit"."""
    siblings: float
    """Chance that a matter shares part of its name with the one before."""
    twins: float
    """Chance that a yearly matter has another of the same name a year before."""
    own_words: float
    """Share of the mail's statements that call a fact by its usual noun."""
    value_last: bool
    """Whether a plain statement says what it is about before what it is: "The lead for the refit is Ana Ruiz"."""
    history: float
    """How often a question is about how a fact went (what changed, who decided, why, latest, before a date), against
    1 for each kind of question about what it is."""
    oblique: float
    """Share of questions in other words than the mail's."""
    indirect: float
    """Share of questions that name a matter by who is in charge of it, which another message says."""


LEVELS: dict[Level, Difficulty] = {
    "plain": Difficulty(
        noise=0.35,
        facts=(1, 2),
        filler=(0, 1),
        depth=1,
        tables=0.0,
        asked=0.0,
        passed_on=0.0,
        open_questions=0,
        echoes=0.0,
        changes=0.0,
        approvals=0.0,
        continues=0.0,
        short_names=0.0,
        siblings=0.0,
        twins=0.0,
        own_words=1.0,
        value_last=True,
        history=0.0,
        oblique=0.0,
        indirect=0.0,
    ),
    "easy": Difficulty(
        noise=0.35,
        facts=(2, 3),
        filler=(0, 1),
        depth=1,
        tables=0.2,
        asked=0.2,
        passed_on=0.3,
        open_questions=0,
        echoes=0.0,
        changes=0.2,
        approvals=0.2,
        continues=0.1,
        short_names=0.8,
        siblings=0.0,
        twins=0.0,
        own_words=1.0,
        value_last=False,
        history=0.25,
        oblique=0.0,
        indirect=0.0,
    ),
    "normal": Difficulty(
        noise=0.4,
        facts=(2, 4),
        filler=(0, 1),
        depth=2,
        tables=0.25,
        asked=0.4,
        passed_on=0.5,
        open_questions=1,
        echoes=0.2,
        changes=0.35,
        approvals=0.3,
        continues=0.3,
        short_names=0.6,
        siblings=0.25,
        twins=0.2,
        own_words=0.9,
        value_last=False,
        history=0.5,
        oblique=0.4,
        indirect=0.1,
    ),
    "hard": Difficulty(
        noise=0.45,
        facts=(3, 5),
        filler=(0, 2),
        depth=4,
        tables=0.3,
        asked=0.8,
        passed_on=0.7,
        open_questions=2,
        echoes=0.55,
        changes=0.5,
        approvals=0.35,
        continues=0.5,
        short_names=0.4,
        siblings=0.5,
        twins=0.4,
        own_words=0.7,
        value_last=False,
        history=1.0,
        oblique=0.85,
        indirect=0.4,
    ),
}
