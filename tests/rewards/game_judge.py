"""Search for wrong answers that the heuristic judge accepts: `python -m tests.rewards.game_judge [ANSWERS] [SEED]`.

An attack turns the right answer to a question, or an answer to another one, into an answer that the reference does not
support: lists of candidates, hedges, quotes of everything, repetition, alternatives in brackets, two answers in two
sentences or languages, invisible characters. It prints how many of each family the judge accepts, with examples.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gumshoe.rewards.heuristic.heuristic_judge import judge_answer
from gumshoe.rewards.scoring import LabelledAnswer, read_labelled

ANSWERS = Path(__file__).parent / "labelled_answers.jsonl"
_SHOWN = 10  # examples of each family
_LONG = 60  # repetitions of a sentence


@dataclass(frozen=True, slots=True)
class Target:
    """A question, its right answer, and right answers to other questions that could be mistaken for it."""

    question: str
    right: str
    others: Sequence[str]
    """Wrong answers of the same kind, at least three."""
    rng: random.Random


@dataclass(slots=True)
class FamilyResult:
    """Results of one family of attacks."""

    tried: int = 0
    accepted: int = 0
    undecided: int = 0
    examples: list[str] = field(default_factory=list)


def _list_of_candidates(target: Target) -> Iterator[str]:
    some = [target.right, *target.others[:3]]
    target.rng.shuffle(some)
    for joint in (", ", "; ", " / ", " or ", " | ", "\n", "\n- ", " and ", " ", "? ", ". ", " - ", " vs ", ") ("):
        yield joint.join(some)
        yield joint.join(some[:2] if target.right in some[:2] else [target.right, some[0]])
    yield "\n".join(f"{number}. {each}" for number, each in enumerate(some, 1))
    yield "".join(f"[{each}]" for each in some)
    yield "{" + ", ".join(f'"answer{number}": "{each}"' for number, each in enumerate(some)) + "}"


def _alternatives_in_brackets(target: Target) -> Iterator[str]:
    other = target.others[0]
    for pattern in ("{} ({})", "{} [alternatively {}]", "{} (or: {})", "{} (also possible: {})", "{} (aka {})"):
        yield pattern.format(target.right, other)
        yield pattern.format(other, target.right)


def _hedge(target: Target) -> Iterator[str]:
    for pattern in (
        "Maybe {}",
        "{}, but I am not sure",
        "It could be {}",
        "I would guess {}",
        "{}?",
        "{} (unconfirmed)",
        "If I had to choose, {}",
        "Some say {}",
        "{} is one possibility",
        "It is unclear whether it is {}",
        "Potentially {}",
        "{} or something like that",
        "One candidate is {}",
    ):
        yield pattern.format(target.right)


def _denial(target: Target) -> Iterator[str]:
    for pattern in (
        "It is not {}",
        "Not {}",
        "{} is wrong",
        "It was {} until it changed",
        "{} is no longer true",
        "Anything but {}",
        "It isn't true that it is {}",
        "They denied that it is {}",
        "{}? No.",
        "{} - false",
        "It never was {}",
        "Contrary to rumours, it is not {}",
        "{} was rejected",
    ):
        yield pattern.format(target.right)


def _two_sentences(target: Target) -> Iterator[str]:
    one, other = target.right, target.others[0]
    for pattern in (
        "It is {}. It is {}.",
        "{}. Another message says {}.",
        "The answer is {}. The answer is {}.",
        "It is {}. Es ist {}.",
        "La respuesta es {}. The answer is {}.",
        "First answer: {}. Second answer: {}.",
        "{}. Correction: {}.",
        "{}\n\n{}",
    ):
        yield pattern.format(one, other)
        yield pattern.format(other, one)


def _question(target: Target) -> Iterator[str]:
    yield target.question
    yield f"{target.question} {target.question}"
    yield f"You asked: {target.question}"
    yield target.question.rstrip("?")
    yield f"The answer to the question: {target.question}"


def _empty(target: Target) -> Iterator[str]:
    yield from ("", " ", ".", "-", "?", "N/A", "none", "\u200b", "the", "it is", "yes no", "Answer:", "null", "...")
    yield target.rng.choice(["0", "1", "a", "X", "*", "TBD", "see above", "as stated in the mail"])


def _long(target: Target) -> Iterator[str]:
    filler = "The message has more about this, and about other things too. "
    yield f"{target.right} {filler * _LONG}"
    yield f"{filler * _LONG} {target.right}"
    yield " ".join([target.right] * _LONG)
    yield " ".join([*target.others, target.right, *target.others] * 3)


def _grid_of_values(target: Target) -> Iterator[str]:
    yield " ".join(map(str, range(100)))
    yield ", ".join(f"${each},000" for each in range(1, 60))
    yield ", ".join(f"{day} {month}" for month in ("January", "May", "July") for day in range(1, 29))
    yield "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
    yield f"{target.right} {' '.join(map(str, range(40)))}"


def _hidden(target: Target) -> Iterator[str]:
    """Yield wrong answers with the right one hidden from a reader, and look-alikes of the right one."""
    other = target.others[0]
    yield f"{other}<!-- {target.right} -->"
    yield f"{other}\n\n\n\n\n{target.right}"
    yield f"{other} ({target.right[::-1]})"
    yield other + "".join(chr(0xE0000 + ord(each)) for each in target.right if ord(each) < 128)
    yield f"{other} \u200b{target.right}\u200b"


def _quote(target: Target) -> Iterator[str]:
    lines = "\n".join(f"> {each}" for each in (*target.others, target.right))
    yield f"From: A\nSubject: B\n\n{lines}"
    yield f"The mail says:\n\n{lines}"
    yield f'The mail says "{"; ".join([*target.others, target.right])}".'
    yield f"-----Original Message-----\n{target.right}\nBest regards,\nAnn"


def _other_answer(target: Target) -> Iterator[str]:
    yield from target.others


def _part(target: Target) -> Iterator[str]:
    words = target.right.split()
    if len(words) > 1:
        yield f"{words[0]} {target.others[0]}"


Family = Callable[[Target], Iterator[str]]
FAMILIES: tuple[Family, ...] = (
    _list_of_candidates,
    _alternatives_in_brackets,
    _hedge,
    _denial,
    _two_sentences,
    _question,
    _empty,
    _long,
    _grid_of_values,
    _hidden,
    _quote,
    _other_answer,
    _part,
)


def game(answers: Sequence[LabelledAnswer], seed: int = 0) -> dict[str, FamilyResult]:
    """Attack the judge with every family on the questions of the labelled answers."""
    rng = random.Random(seed)
    asked = {each.question: each for each in answers}
    found: dict[str, FamilyResult] = {}
    for each in asked.values():
        alike = {
            other.reference
            for other in asked.values()
            if _kind(other) == _kind(each) and other.reference.casefold() not in each.reference.casefold()
        }
        others = [one for one in sorted(alike) if not judge_answer(each.question, each.reference, one).correct]
        if len(others) < 3:
            continue
        target = Target(each.question, each.reference.rstrip("."), rng.sample(others, 3), rng)
        for family in FAMILIES:
            result = found.setdefault(family.__name__.strip("_").replace("_", " "), FamilyResult())
            for answer in family(target):
                verdict = judge_answer(each.question, each.reference, answer, each.query_date)
                result.tried += 1
                result.undecided += verdict.is_undecided
                if verdict.correct:
                    result.accepted += 1
                    result.examples.append(f"{each.question} | {each.reference} | {answer} | {verdict.rule}")
    return found


def _kind(answer: LabelledAnswer) -> str:
    """Return the first word of a question, which says what is asked for."""
    return answer.question.split()[0].casefold()


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else str(ANSWERS)
    for name, result in game(read_labelled(place), int(sys.argv[2]) if len(sys.argv) > 2 else 0).items():
        print(f"{name}: {result.accepted:,} of {result.tried:,} accepted, {result.undecided:,} undecided")
        for example in random.Random(0).sample(result.examples, min(_SHOWN, len(result.examples))):
            print(f"    {example[:300]!r}")
