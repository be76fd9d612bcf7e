"""Mail and queries for benchmarks: the real mail beside the checkout, repeated with other ids, addresses and dates."""

import gzip
import json
import random
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parents[3] / "shared" / "data" / "enron"
OWNER = "owner@example.com"
RARE_IN = range(5, 50)  # number of real messages that contain a rare word
COMMON = 200  # words that occur in most messages, and the most frequent phrases

_STOP_WORDS = frozenset(
    re.split(
        " ",
        "a about an and any are as at be been by can could did do does for from had has have he her his how i if in "
        "into is it its me my of on or our she should so such than that the their them then there these they this to "
        "us was we were what when where which who whom whose why will with would you your",
    )
)


class Query(NamedTuple):
    """A search in one inbox. Days are YYYY-MM-DD."""

    kind: str
    inbox: str
    keywords: list[str]
    after: str | None = None
    before: str | None = None


def real_messages() -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / "mail.jsonl.gz") as lines:
        yield from map(json.loads, lines)


def real_questions() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "questions.jsonl").read_text().splitlines()]


def repeat_messages(copies: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the real messages repeatedly, each time with other ids, addresses and dates."""
    messages = list(real_messages())
    for copy in range(first, first + copies):
        for message in messages:
            renamed = {
                role: [f"{address.strip().lower()}.{copy}" for address in message[role]] for role in ("to", "cc", "bcc")
            }
            sent = datetime.fromisoformat(message["date"]) + timedelta(days=37 * copy, minutes=copy)
            yield {
                **message,
                **renamed,
                "body": message["body"].replace("\r\n", "\n").replace("\r", "\n"),  # as the product counts the length
                "from": f"{message['from'].strip().lower()}.{copy}",
                "message_id": f"{message['message_id'][:-1]}.{copy}>",
                "date": sent.isoformat(),
            }


def write_jsonl(path: Path, messages: Iterable[dict[str, Any]]) -> None:
    with path.open("w") as file:
        for message in messages:
            file.write(json.dumps(message) + "\n")


def extract_raw_mail(directory: Path) -> list[Path]:
    """Extract the real raw messages into a directory, and return their files."""
    with tarfile.open(DATA / "maildir-993.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return sorted(path for path in directory.rglob("*") if path.is_file())


def write_mbox(path: Path, raw: list[Path], size: int) -> int:
    """Write an mbox file of at least `size` bytes, and return its number of messages.

    It repeats the raw messages with other ids and subjects.
    """
    contents = [re.sub(rb"^(>*From )", rb">\1", file.read_bytes(), flags=re.MULTILINE) for file in raw]
    number = 0
    with path.open("wb") as mbox:
        while mbox.tell() < size:
            copy = b"%d" % (number // len(contents))
            content = contents[number % len(contents)].replace(b"Message-ID: <", b"Message-ID: <" + copy + b".", 1)
            content = content.replace(b"\nSubject: ", b"\nSubject: " + copy + b" ", 1)
            mbox.write(b"From ann@example.com Thu Nov  8 16:04:35 2001\n" + content.rstrip(b"\n") + b"\n\n")
            number += 1
    return number


def choose_keywords(question: str) -> list[str]:
    """Return the words of a question without stop words and single letters. Nothing else is done to them."""
    words = re.findall(r"\w+", question.lower())
    return [word for word in dict.fromkeys(words) if len(word) > 1 and word not in _STOP_WORDS]


class _Words(NamedTuple):
    common: list[str]
    rare: list[str]
    phrases: list[str]


def _count_words() -> _Words:
    words: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    triples: Counter[str] = Counter()
    for number, message in enumerate(real_messages()):
        found = re.findall(r"[a-z]{2,}", message["body"].lower())
        words.update(set(found))
        if number % 5 == 0:
            pairs.update(map(" ".join, pairwise(found)))
            triples.update(map(" ".join, zip(found, found[1:], found[2:], strict=False)))
    phrases = [phrase for counts in (pairs, triples) for phrase, _ in counts.most_common(COMMON)]
    rare = sorted(word for word, count in words.items() if count in RARE_IN)
    return _Words([word for word, _ in words.most_common(COMMON)], rare, phrases)


def list_inboxes(copies: int) -> list[str]:
    """Return the inboxes that hold at least 100 messages of each copy of the real mail."""
    received: Counter[str] = Counter()
    for message in real_messages():
        received.update({address.strip().lower() for address in [message["from"], *message["to"]]})
    frequent = sorted(address for address, count in received.items() if count >= 100)
    return [f"{address}.{copy}" for address in frequent for copy in range(copies)]


def make_queries(inboxes: list[str], number: int) -> list[Query]:
    """Return at most `number` different queries of several kinds."""
    chance = random.Random(0)
    common, rare, phrases = _count_words()
    questions = [choose_keywords(each["question"])[:3] for each in real_questions()]
    queries: dict[str, Query] = {}
    for turn in range(number):
        inbox = chance.choice(inboxes)
        day = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=chance.randrange(1500))
        days = f"{day:%Y-%m-%d}", f"{day + timedelta(days=365):%Y-%m-%d}"
        query = [
            Query("rare word", inbox, [chance.choice(rare)]),
            Query("common word", inbox, [chance.choice(common)]),
            Query("common words", inbox, chance.sample(common, 2)),
            Query("phrase", inbox, [chance.choice(phrases)]),
            Query("date range", inbox, [chance.choice(common)], *days),
            Query("common and rare", inbox, [*chance.sample(common, 2), chance.choice(rare)]),
            Query("question", inbox, chance.choice(questions)),
        ][turn % 7]
        queries[repr(query)] = query
    return [query for query in queries.values() if query.keywords]
