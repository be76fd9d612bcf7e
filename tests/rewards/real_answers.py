"""Create 300 labelled answers to the real questions: `python -m tests.rewards.real_answers OUT [SEED]`.

Half are correct: the reference in another form. Half are wrong: a changed value, the answer to another question,
several candidates, no commitment, a quote of the whole message, or the opposite.
"""

import calendar
import gzip
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ENRON = Path(__file__).parents[3] / "shared" / "data" / "enron"
EACH = 25
_NAME = re.compile(r"\b[A-Z][a-z]+ [A-Z][a-z]+\b")
_LONGEST = 220  # characters of a reference
_MONTHS = calendar.month_name[1:]


@dataclass(frozen=True)
class Answer:
    """A labelled answer in the format of `gumshoe judge calibrate`."""

    question: str
    reference: str
    query_date: str
    answer: str
    correct: bool
    kind: str


@dataclass(frozen=True)
class Source:
    """A question, with the material to create answers."""

    question: str
    reference: str
    query_date: str
    message: str
    others: list[str]
    """Answers of other questions that begin alike."""
    dice: random.Random

    @property
    def plain(self) -> str:
        return self.reference.strip().rstrip(".")

    def other(self) -> str | None:
        said = set(re.findall(r"\w+", self.reference.casefold()))
        far = [each for each in self.others if not said & set(re.findall(r"\w{3,}", each.casefold()))]
        return self.dice.choice(far).strip().rstrip(".") if far else None


def sentence(source: Source) -> str | None:
    lead = source.dice.choice(["According to the mail: ", "The answer is: ", "I found this: ", "From the inbox: "])
    return f"{lead}{source.plain}."


def other_form(source: Source) -> str | None:
    """Write dates, times, money and small numbers in another way."""
    text = source.plain
    months = "|".join(f"{name}|{name[:3]}" for name in _MONTHS)
    text = re.sub(rf"\b({months}) (\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)", r"\2 \1", text)
    text = re.sub(r"\b(\d{1,2}):00 ?([ap])\.?m\b\.?", r"\1 \2m", text, flags=re.I)
    text = re.sub(r"\b(\d{1,2}):(\d\d) ?([ap])\.?m\b\.?", r"\1.\2 \3.m.", text, flags=re.I)
    text = re.sub(r"\$([\d,.]*\d)(?![\d,.]| ?(?:million|billion|[mMkK]))", r"\1 dollars", text)
    text = re.sub(r"\b(\d{1,3}),000\b", r"\1 thousand", text)
    text = re.sub(r"(?<![\d.,:/-])\b([2-9])\b(?![\d.,:/-]| ?[ap]\.?m| [A-Z]|st|nd|rd|th)", _spelt, text)
    return text if text != source.plain else None


def _spelt(match: re.Match[str]) -> str:
    return ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"][int(match[1])]


def lower(source: Source) -> str | None:
    return source.plain.lower()


def name_alone(source: Source) -> str | None:
    """Return the name alone, if the reference has it in a sentence."""
    if not re.match(r"Who (?!.*\band\b)", source.question):
        return None
    if re.search(r"\d", source.reference):
        return None
    found = re.match(
        r"((?:Dr\. )?[A-Z]\w+(?: [A-Z]\w+)+)(?= (?:is|was|will|has|requested|recommended|sent|asked)\b|, )",
        source.reference,
    )
    return (
        found[1]
        if found
        and found[1].split()[-1] not in source.question
        and not re.search(r" and |[,;] [A-Z]", source.reference)
        else None
    )


def with_context(source: Source) -> str | None:
    """Add a sentence of the message."""
    sentences = re.findall(r"(?<=[.!?] )[A-Z][^.!?\n]{30,110}[.!?]", " ".join(source.message.split()))
    known = set(re.findall(r"\w{4,}", source.reference.casefold()))
    fitting = [
        each
        for each in sentences
        if not re.search(r"\d|[A-Z]\w+ [A-Z]", each) and not known & set(re.findall(r"\w{4,}", each.casefold()))
    ]
    return f"{source.plain}. {source.dice.choice(fitting)}" if fitting else None


def other_number(source: Source) -> str | None:
    places = list(re.finditer(r"\d+", source.reference))
    if not places:
        return None
    place = source.dice.choice(places)
    number = str(int(place[0]) + source.dice.choice([1, 2, 3])).zfill(len(place[0]))
    if int(number) > 12 and source.reference[place.end() :].startswith(":"):
        number = "7" if place[0] != "7" else "8"
    return (source.reference[: place.start()] + number + source.reference[place.end() :]).rstrip(".")


def other_name(source: Source) -> str | None:
    """Return another person, if the answer is a person."""
    if not source.question.startswith("Who"):
        return None
    mine = [name for name in _NAME.findall(source.reference) if name not in source.question]
    theirs = [name for each in source.others for name in _NAME.findall(each) if name.split()[0] not in source.reference]
    if len(mine) != 1 or not theirs:
        return None
    return source.plain.replace(mine[0], source.dice.choice(theirs))


def other_answer(source: Source) -> str | None:
    return source.other()


def candidates(source: Source) -> str | None:
    other = source.other()
    if other is None or len(other) + len(source.plain) > 120:
        return None
    two = source.dice.sample([source.plain, other], 2)
    return source.dice.choice(["{} or {}", "Either {} or {}", "{}, or else {}", "It is one of these: {}; {}"]).format(
        *two
    )


def hedge(source: Source) -> str | None:
    way = source.dice.choice(
        [
            "It might be this: {}, but I could not confirm it",
            "Possibly {}",
            "I am not sure. Perhaps {}",
            "{}, but that is only a guess",
        ]
    )
    return way.format(source.plain)


def dump(source: Source) -> str | None:
    return source.message if 80 <= len(source.message.split()) <= 600 else None


def opposite(source: Source) -> str | None:
    if len(source.plain.split()) > 6:
        return None
    return source.dice.choice(["It is not {}", "Not {}", "Anyone or anything but {}"]).format(source.plain)


MAKERS: Mapping[Callable[[Source], str | None], tuple[bool, int]] = {
    sentence: (True, 30),
    other_form: (True, 40),
    lower: (True, 25),
    name_alone: (True, 25),
    with_context: (True, 30),
    other_number: (False, 35),
    other_name: (False, 25),
    other_answer: (False, 25),
    candidates: (False, 20),
    hedge: (False, 15),
    dump: (False, 20),
    opposite: (False, 10),
}


def labelled_answers(seed: int = 0) -> Iterator[Answer]:
    """Return 300 answers, each to a different question."""
    dice = random.Random(seed)
    with (ENRON / "questions.jsonl").open(encoding="utf-8") as lines:
        asked: list[dict[str, Any]] = [json.loads(line) for line in lines]
    with gzip.open(ENRON / "mail.jsonl.gz", "rt", encoding="utf-8") as lines:
        messages = {each["message_id"]: each["body"] for each in map(json.loads, lines)}
    dice.shuffle(asked)
    used: set[int] = set()
    for maker, (correct, count) in MAKERS.items():
        for each in asked:
            if each["id"] in used or len(each["answer"]) > _LONGEST or not count:
                continue
            alike = [other["answer"] for other in asked if other["question"].split()[0] == each["question"].split()[0]]
            message = next((messages[number] for number in each["message_ids"] if number in messages), "")
            source = Source(each["question"], each["answer"], each["query_date"], message, alike, dice)
            answer = maker(source)
            if answer and (correct or answer.casefold() != source.plain.casefold()):
                used.add(each["id"])
                count -= 1
                yield Answer(
                    source.question,
                    source.reference,
                    source.query_date,
                    answer,
                    correct,
                    maker.__name__.replace("_", " "),
                )


if __name__ == "__main__":
    made = labelled_answers(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(asdict(each))}\n" for each in made), encoding="utf-8")
