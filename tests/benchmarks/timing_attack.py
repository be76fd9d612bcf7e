"""Measure what the time of a search or a reading tells about the mail of others.

Run `python -m tests.benchmarks.timing_attack`. An attacker with one inbox of an index of real mail asks for words,
addresses and ids that are not in that inbox. Half of them are in the mail of others. Which half is drawn, and the other
half is taken out of the mail before it is indexed, so that nothing else distinguishes them. The area under the curve
(AUC) of the median times is 0.5 if time tells nothing, and 1 if it tells everything.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.terminal import out
from tests.benchmarks.mail_corpus import Query, real_messages
from tests.benchmarks.mail_engines import Plain

SIZE = 1_000  # things of each half
OWN_MAIL = range(100, 1_000)  # messages of the attacker
_HELD_BY = range(5, 200)  # messages of others that hold a word
_SAMPLES = 2_000  # of the bootstrap
_WORD = re.compile(r"[a-z]{5,12}")
_REMOVED = re.compile(r"[A-Za-z]+")

Attack = Callable[[str], object]


class Targets(NamedTuple):
    """What the attacker asks for, the half that others have first."""

    words: list[str]
    addresses: list[str]
    ids: list[str]


class Corpus(NamedTuple):
    """Mail from which the second half of the targets was taken out, and the attacker's address."""

    messages: list[dict[str, Any]]
    attacker: str
    targets: Targets


def list_people(message: dict[str, Any]) -> set[str]:
    everyone = [message["from"], *message["to"], *message["cc"], *message["bcc"]]
    return {each.strip().lower() for each in everyone}


def list_words(message: dict[str, Any]) -> set[str]:
    return set(_WORD.findall(f"{message['subject']} {message['body']}".lower()))


def make_corpus(messages: list[dict[str, Any]], seed: int, size: int = SIZE) -> Corpus:
    """Choose an attacker and targets, and take half of the targets out of the mail."""
    random = np.random.default_rng(seed)
    held = Counter(address for message in messages for address in list_people(message))
    attacker = min(address for address, count in held.items() if count in OWN_MAIL and "@" in address)
    others = [each for each in messages if attacker not in list_people(each)]
    own = [each for each in messages if attacker in list_people(each)]

    def draw(counts: Counter[str], known: set[str], allowed: range) -> list[str]:
        found = sorted(each for each, count in counts.items() if count in allowed and each not in known)
        return [str(each) for each in random.choice(found, 2 * size, replace=False)]

    known_words = set[str]().union(*map(list_words, own))
    known_people = set[str]().union(*map(list_people, own))
    targets = Targets(
        draw(Counter(word for each in others for word in list_words(each)), known_words, _HELD_BY),
        draw(
            Counter(address for each in others for address in list_people(each) if "@" in address),
            known_people,
            range(1, len(messages)),
        ),
        draw(Counter(each["message_id"] for each in others), set(), range(1, 2)),
    )
    gone_words, gone_people, gone_ids = (set(each[size:]) for each in targets)
    return Corpus([_take_out(each, gone_words, gone_people | gone_ids) for each in messages], attacker, targets)


def _take_out(message: dict[str, Any], words: set[str], names: set[str]) -> dict[str, Any]:
    """Return a message without some words, and with other addresses and another id in place of some."""

    def rename(name: str) -> str:
        return f"x{name.strip()}" if name.strip().lower() in names or name in names else name

    return {
        **message,
        **{name: _remove(message[name], words) for name in ("subject", "body")},
        **{role: [rename(each) for each in message[role]] for role in ("to", "cc", "bcc")},
        **{name: rename(message[name]) for name in ("from", "message_id")},
    }


def _remove(text: str, gone: set[str]) -> str:
    return _REMOVED.sub(lambda word: "" if word[0].lower() in gone else word[0], text)


def time_targets(attack: Attack, targets: list[str], rounds: int, seed: int) -> list[float]:
    """Return the median time of each target in microseconds. Each round asks for all of them in another order."""
    random = np.random.default_rng(seed)
    times: list[list[float]] = [[] for _ in targets]
    for _ in range(rounds):
        for number in random.permutation(len(targets)).tolist():
            started = time.perf_counter()
            attack(targets[number])
            times[number].append((time.perf_counter() - started) * 1e6)
    return list(map(statistics.median, times))


def measure_auc(times: list[float], seed: int = 0) -> tuple[float, float]:
    """Return the AUC of the times of the first half against those of the second, and its upper bound.

    An attacker may take longer or shorter times as a sign, so the AUC is that of the better choice, at least 0.5. The
    bound is the 95th percentile of a bootstrap over the targets, of the AUC for that choice.
    """
    half = len(times) // 2
    held, absent = np.array(times[:half]), np.array(times[half:])
    wins = (held[:, None] > absent[None, :]) + 0.5 * (held[:, None] == absent[None, :])
    if wins.mean() < 0.5:
        wins = 1 - wins
    random = np.random.default_rng(seed)
    draws = [
        wins[np.ix_(random.integers(half, size=half), random.integers(half, size=half))].mean() for _ in range(_SAMPLES)
    ]
    return float(wins.mean()), float(np.quantile(draws, 0.95))


def list_attacks(directory: Path, corpus: Corpus) -> list[tuple[str, Attack, list[str]]]:
    """Build the indexes, and return each attack with its name and targets."""
    source = directory / "mail.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in corpus.messages))
    build_mail_index([f"jsonl:{source}"], directory / "index", MailBuildOptions())
    plain = Plain(directory / "plain.sqlite")
    plain.build(corpus.messages)
    plain.open()
    index, inbox, targets = MailIndex(directory / "index"), corpus.attacker, corpus.targets
    (known, *_) = index.list_messages(inbox)
    common = Counter(word for each in corpus.messages if inbox in list_people(each) for word in list_words(each))
    mine = common.most_common(1)[0][0]

    def forget(call: Callable[[], object]) -> object:
        """Call a method without the results of earlier calls, which the attacker would avoid by other arguments."""
        for cache in (index._hits, index._partial, index._number, index._small_message):
            cache.cache_clear()
        return call()

    def read(message_id: str) -> None:
        with suppress(MessageNotFoundError):
            index.read(inbox, message_id)

    index.read(inbox, known[0])
    words, addresses, ids = targets

    def search(each: str, **options: Any) -> object:
        return forget(lambda: index.search(inbox, [each], **options))

    return [
        ("a word, in a plain database", lambda each: plain.search(Query("", inbox, [each]), "relevance"), words),
        ("a word", search, words),
        ("a word, newest first", lambda each: search(each, order="date"), words),
        ("a word beside one of mine", lambda each: forget(lambda: index.search_partially(inbox, [mine, each])), words),
        ("a sender", lambda each: search(mine, sender=each), addresses),
        ("a recipient", lambda each: search(mine, recipient=each), addresses),
        ("an id", lambda each: forget(lambda: read(each)), ids),
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    table = Table("attack", "held by others, µs", "held by nobody, µs", "AUC", "upper bound")
    corpus = make_corpus(list(real_messages()), chosen.seed)
    with tempfile.TemporaryDirectory() as scratch:
        for name, attack, targets in list_attacks(Path(scratch), corpus):
            time_targets(attack, targets[:50] + targets[-50:], 1, chosen.seed)
            times = time_targets(attack, targets, chosen.rounds, chosen.seed)
            half = len(times) // 2
            auc, bound = measure_auc(times)
            medians = (statistics.median(times[:half]), statistics.median(times[half:]))
            table.add_row(name, *(f"{each:,.0f}" for each in medians), f"{auc:.3f}", f"{bound:.3f}")
    out.print(table)


if __name__ == "__main__":
    main()
