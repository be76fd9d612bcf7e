"""What `gumshoe train` teaches the tiny policy, in one run: `python -m tests.benchmarks.learning`.

Two invented companies that share nothing, and that the tiny policy was not made with: one to learn from, and one to be
tested on. Before and after, the policy answers the same questions of the second, greedy; the difference has a paired
bootstrap interval. Beside the mode `masked`, with several seeds: a learning rate of 0, and the other modes. The same
with two invented handbooks as documents. Where the real mail is at hand, the policy learns from real questions too, and
is tested on the others.

Takes some ten minutes a run. Ends with 1 where the mode `masked` gains less than 40 points, ends under 85 %, or takes
longer than 10 minutes; or where a learning rate of 0 changes an answer.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gumshoe.documents.build import DocumentBuildOptions
from gumshoe.documents.build import build_document_index as build_documents
from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.results import Difference, EvaluationResult, PolicyResult
from gumshoe.mail.build import build_mail_index
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.mailboxes import MAIL_FILE, synthesize_mail, write_mail
from gumshoe.synthesis.reference_work import DOCUMENTS_FILE, synthesize_documents, write_documents
from tests.benchmarks.mail import DATA, show

CONFIG = "tiny"
LEARNED_FROM, TESTED_ON = 9001, 9002  # seeds of companies
QUESTIONS = 240  # of the test
LEAST_GAIN, LEAST_AFTER, MOST_MINUTES = 0.4, 0.85, 10.0  # what the mode `masked` is held to
OF_DOCUMENTS = ["--set", "rewards.functions=[{name: rubric, arguments: {wrong: 0}}]"]
"""It seldom answers rightly at first: where a wrong answer costs, the first that it learns is not to answer."""
HEADER = ["", "before", "after", "gained", "95 % interval", "minutes"]


@dataclass(frozen=True, slots=True)
class Questions:
    """An index, and scenarios about it."""

    index: Path
    scenarios: Path
    split: str = "all"

    @property
    def words(self) -> list[str]:
        return ["--index", str(self.index), "--scenarios", str(self.scenarios)]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is learned from, what is tested on, and the test of the tiny policy as it comes."""

    train: Questions
    test: Questions
    before: PolicyResult


@dataclass(frozen=True, slots=True)
class Learned:
    """One run, and what came of it."""

    name: str
    before: PolicyResult
    after: PolicyResult
    minutes: float

    @property
    def change(self) -> Difference:
        return compare_policies(self.after, self.before).accuracy

    def row(self, metrics: tuple[str, ...] = ("accuracy",)) -> list[str]:
        change = self.change
        shares = [
            ", ".join(f"{100 * each.metrics[metric].value:.1f} %" for metric in metrics)
            for each in (self.before, self.after)
        ]
        gained, interval = f"{100 * change.difference:+.1f}", f"{100 * change.low:+.1f} to {100 * change.high:+.1f}"
        return [self.name, *shares, gained, interval, f"{self.minutes:.1f}"]

    @property
    def is_enough(self) -> bool:
        after = self.after.metrics["accuracy"].value
        return self.change.difference >= LEAST_GAIN and after >= LEAST_AFTER and self.minutes <= MOST_MINUTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the mode masked; the rest has one")
    parts = ["masked", "others", "documents", "real"]
    parser.add_argument("--only", choices=parts, help="a part of it")
    options = parser.parse_args()
    wanted = [options.only] if options.only else parts
    missed = list[str]()
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as scratch:
        directory = Path(scratch)
        if {"masked", "others"} & set(wanted):
            invented = lesson(company(directory, LEARNED_FROM), company(directory, TESTED_ON), directory / "before")
            runs: list[tuple[str, list[str]]] = []
            if "masked" in wanted:
                runs += [(f"masked, seed {seed}", ["--set", f"data.seed={seed}"]) for seed in options.seeds]
            if "others" in wanted:
                runs += [
                    ("masked, learning rate 0", ["--set", "optimizer.learning_rate=0"]),
                    ("rollout", ["--mode", "rollout"]),
                    ("simple", ["--mode", "simple"]),
                ]
            found = [ran(name, more, invented, directory / f"run-{place}") for place, (name, more) in enumerate(runs)]
            show(f"Right answers to {QUESTIONS} questions about invented mail", HEADER, [each.row() for each in found])
            missed += [each.name for each in found if "seed" in each.name and not each.is_enough]
            missed += [each.name for each in found if each.name.endswith(" 0") and each.change.difference]
        if "documents" in wanted:
            train = work(directory, LEARNED_FROM)
            test = without(work(directory, TESTED_ON), train)
            handbooks = lesson(train, test, directory / "works-before")
            learned = ran("masked", OF_DOCUMENTS, handbooks, directory / "works-run")
            title = f"Right answers to {QUESTIONS} questions about an invented handbook, and the right document read"
            show(title, HEADER, [learned.row(("accuracy", "read"))])
            missed += ["documents"] if learned.change.low <= 0 else []
        if "real" in wanted and DATA.exists():
            real = real_questions(directory)
            known = lesson(real, Questions(real.index, real.scenarios, "test"), directory / "real-before")
            learned = ran("masked", [], known, directory / "real-run")
            title = "The real questions: right answers, and the right message found"
            show(title, HEADER, [learned.row(("accuracy", "found"))])
    if missed:
        sys.exit(f"not as it should be: {', '.join(missed)}")


def company(directory: Path, seed: int) -> Questions:
    """An invented company with plain questions."""
    place = directory / str(seed)
    write_mail(synthesize_mail(seed, 12, 3600, "plain"), place)
    build_mail_index([f"jsonl:{place / MAIL_FILE}"], place / "index")
    return Questions(place / "index", place / "scenarios.jsonl")


def work(directory: Path, seed: int) -> Questions:
    """An invented handbook with plain questions, searched by words alone."""
    place = directory / f"work-{seed}"
    write_documents(synthesize_documents(seed, 1200, "plain"), place)
    build_documents([f"jsonl:{place / DOCUMENTS_FILE}"], place / "index", DocumentBuildOptions(embedding="none"))
    return Questions(place / "index", place / "scenarios.jsonl")


def without(asked: Questions, seen: Questions) -> Questions:
    """Questions but for those that the others ask too, as of a journey to the same town."""
    known = {each.digest for each in load_scenarios(str(seen.scenarios))}
    place = asked.scenarios.with_name("apart.jsonl")
    kept = [each for each in load_scenarios(str(asked.scenarios)) if each.digest not in known]
    place.write_bytes(ScenarioSet.of(kept).to_jsonl())
    return Questions(asked.index, place)


def real_questions(directory: Path) -> Questions:
    """The real mail, with the public questions; the test stays as it is."""
    build_mail_index([f"jsonl:{DATA / 'mail.jsonl.gz'}"], directory / "real-index")
    scenarios = directory / "real.jsonl"
    split = ["scenarios", "split", str(DATA / "questions.jsonl"), "--validation", "0.1", "--keep-test", "--seed", "1"]
    gumshoe(*split, "--out", str(scenarios))
    return Questions(directory / "real-index", scenarios)


def lesson(train: Questions, test: Questions, place: Path) -> Lesson:
    return Lesson(train, test, measured("tiny", test, place))


def measured(policy: str, asked: Questions, place: Path) -> PolicyResult:
    """A policy on the questions of a test."""
    limit = ["--limit", str(QUESTIONS)] if asked.split == "all" else []
    bounds = ["--max-turns", "6", "--max-tokens", "120"]  # as in training
    gumshoe("evaluate", *asked.words, "--split", asked.split, *limit, *bounds, "--policy", policy, "--out", str(place))
    result = EvaluationResult.model_validate_json((place / "metrics.json").read_bytes())
    return result.policies[0]


def ran(name: str, more: list[str], known: Lesson, out: Path) -> Learned:
    started = time.monotonic()
    gumshoe("train", "--config", str(CONFIG), *known.train.words, "--out", str(out), *more)
    minutes = (time.monotonic() - started) / 60
    return Learned(name, known.before, measured(f"tiny#{out / 'final'}", known.test, out.with_suffix(".test")), minutes)


def gumshoe(*words: str) -> None:
    """Run a command, with its output on this terminal."""
    subprocess.run([sys.executable, "-m", "gumshoe", *words], check=True)


if __name__ == "__main__":
    main()
