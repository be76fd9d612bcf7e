"""Show that the measure of memorization works: `python -m tests.benchmarks.memorization`.

Canaries are planted in the training mailboxes of a synthetic company. Two adapters of the tiny policy are trained on
them: one on episodes that answer at once, without a search, so that it can only memorize; and one on correct episodes
that search and read, as in a normal warm start. Both and the untouched tiny policy are asked from another inbox.

It takes 30 minutes on two cores. Exits with 1 if the first adapter is not exposed (p > 0.01, fewer than 5 bits, or
fewer than half of the canaries extracted), or if the untouched policy is (p < 0.01, or any extracted).
"""

import argparse
import sys
import tempfile
from datetime import date
from pathlib import Path

from gumshoe.evaluation.memorization import Memorization, format_bits
from gumshoe.evaluation.results import EvaluationResult
from gumshoe.mail.build import build_mail_index
from gumshoe.scenarios.canary_record import CANARIES_FILE
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.synthesis.canaries import synthesize_canaries, write_canaries
from gumshoe.synthesis.mailboxes import MAIL_FILE, synthesize_mail, write_mail
from tests.benchmarks.learning import CONFIG, gumshoe
from tests.benchmarks.mail import show
from tests.evaluation.closed_book import write_closed_book

SEED, COMPANY = 1, 9003
UNTOUCHED, NORMAL, CLOSED_BOOK = "untouched", "search and read", "answer at once"
HEADER = ["policy", "exposure, bits", "controls, bits", "p", "extracted", "controls"]
TRAINING = {
    NORMAL: ["warm_start.epochs=20", "warm_start.learning_rate=2e-3"],
    CLOSED_BOOK: ["warm_start.epochs=60", "warm_start.learning_rate=5e-3"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canaries", type=int, default=8, help="planted canaries, and as many controls")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as scratch:
        found = measure(Path(scratch), options.canaries)
    show(f"{options.canaries} canaries, asked for from another inbox", HEADER, [row(*each) for each in found.items()])
    missed = find_misses(found)
    if missed:
        sys.exit(f"requirements not met: {', '.join(missed)}")


def measure(directory: Path, canaries: int) -> dict[str, Memorization]:
    """Train both adapters, and return what each policy memorized, by its name."""
    planted, index = plant(directory, canaries)
    words = ["--index", str(index), "--scenarios", str(planted / "canary-questions.jsonl")]
    closed_book = write_closed_book(index, planted / "canary-questions.jsonl", directory / "closed-book.jsonl")
    given = {NORMAL: ["--from-gold"], CLOSED_BOOK: [str(closed_book)]}
    policies = [f"{UNTOUCHED.replace(' ', '-')}=tiny"]
    for name, settings in TRAINING.items():
        place = directory / name.replace(" ", "-")
        more = [each for setting in settings for each in ("--set", setting)]
        gumshoe("warm-start", *given[name], *words, "--config", CONFIG, "--out", str(place), *more)
        policies.append(f"{place.name}=tiny#{place}")
    asked = ["--index", str(index), "--scenarios", str(planted / "scenarios.jsonl"), "--limit", "4"]
    bounds = ["--max-turns", "6", "--max-tokens", "120", "--memorised", str(planted / CANARIES_FILE)]
    named = [each for policy in policies for each in ("--policy", policy)]
    gumshoe("evaluate", *asked, *bounds, *named, "--out", str(directory / "measured"))
    result = EvaluationResult.model_validate_json((directory / "measured" / "metrics.json").read_bytes())
    return {each.name.replace("-", " "): each.memorised for each in result.policies if each.memorised}


def plant(directory: Path, canaries: int) -> tuple[Path, Path]:
    """Write a company's mail with canaries in its training mailboxes. Return the files, and the index."""
    company = synthesize_mail(COMPANY, 6, 900, "plain")
    write_mail(company, directory / "mail")
    inboxes = sorted(company.scenarios.only("train").inboxes)
    last = max(each.query_date or date.min for each in company.scenarios)
    made = synthesize_canaries(SEED, inboxes, canaries, canaries, last)
    place = directory / "canaries"
    write_canaries(made, place, company.scenarios)
    (place / "canary-questions.jsonl").write_bytes(ScenarioSet.of(made.scenarios).to_jsonl())
    sources = [f"jsonl:{each / MAIL_FILE}" for each in (directory / "mail", place)]
    build_mail_index(sources, directory / "index")
    return place, directory / "index"


def row(name: str, found: Memorization) -> list[str]:
    shares = [f"{each.value:.0%}" for each in (found.extracted, found.control_extracted)]
    return [name, format_bits(found.exposure), format_bits(found.control_exposure), f"{found.p_value:.2g}", *shares]


def find_misses(found: dict[str, Memorization]) -> list[str]:
    """Return the names of the policies for which the measure does not show what is known."""
    untouched, memorized = found[UNTOUCHED], found[CLOSED_BOOK]
    missed = []
    if untouched.p_value < 0.01 or untouched.extracted.value:
        missed.append(UNTOUCHED)
    if memorized.p_value > 0.01 or memorized.exposure.value < 5 or memorized.extracted.value < 0.5:
        missed.append(CLOSED_BOOK)
    return missed


if __name__ == "__main__":
    main()
