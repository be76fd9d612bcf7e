"""Difficulty levels of questions about synthetic mail and documents."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["plain", "easy", "normal", "hard"]


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Difficulty of answering questions. Shares and probabilities are from 0 to 1.

    In a reference work, a topic is the subject of an entry, a change is one between two editions, and a message that
    talks about settled facts is an article that does. It uses `noise`, `facts`, `filler`, `echoes`, `changes`,
    `siblings`, `own_words`, `value_last`, `history`, `oblique` and `indirect`.
    """

    noise: float
    """Share of messages without a topic: newsletters, notices, small talk."""
    facts: tuple[int, int]
    """Number of facts per topic that the mail states: minimum and maximum."""
    filler: tuple[int, int]
    """Number of sentences around a fact that state no fact: minimum and maximum."""
    depth: int
    """Maximum number of messages that a reply quotes."""
    tables: float
    """Probability that the first facts of a topic are in a table."""
    asked: float
    """Weight of facts that are stated as the answer to a question, relative to 1 for a plain statement.

    The question is in the mailbox too, in a message without the answer.
    """
    passed_on: float
    """Weight of facts that are stated in a forwarded message from outside, relative to 1 for a plain statement."""
    open_questions: int
    """Maximum number of messages that talk about a topic's facts before they are settled."""
    echoes: float
    """Probability that a message talks about a settled fact without stating it."""
    changes: float
    """Probability that a fact of a topic changes."""
    approvals: float
    """Probability that a topic contains a request that is granted or refused."""
    continues: float
    """Probability that a change is sent as a reply in an old thread."""
    short_names: float
    """Probability that such a reply uses the topic's short name, e.g. "the refit"."""
    siblings: float
    """Probability that a topic shares part of its name with the previous one."""
    twins: float
    """Probability that a yearly topic has another of the same name a year earlier."""
    own_words: float
    """Share of statements that use a fact's usual noun."""
    value_last: bool
    """True if a plain statement names the topic before the value, e.g. "The lead for the refit is Ana Ruiz"."""
    history: float
    """Weight of questions about how a fact changed, relative to 1 for each kind of question about what it is.

    They ask what changed, who decided, why, what is latest, or what it was before a date.
    """
    oblique: float
    """Share of questions in other words than those of the mail."""
    indirect: float
    """Share of questions that name a topic by the person in charge, whom another message mentions."""


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
