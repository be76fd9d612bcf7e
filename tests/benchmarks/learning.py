"""Measure how much the tiny policy improves with `gumshoe train`: `python -m tests.benchmarks.learning`.

There are two synthetic companies that the tiny policy has not seen: one for training, and one for testing. Before and
after training, the policy answers the same questions about the second one, greedily; the difference has a paired
bootstrap interval. Runs are made in mode `masked` with several seeds, with a learning rate of 0, and in the other
modes. The same is done with two synthetic handbooks as documents. If the real mail exists, the policy is also trained
on real questions, and tested on others.

A run takes about ten minutes. Exits with 1 if mode `masked` gains less than 40 points, ends below 85 %, or takes longer
than 10 minutes; or if a learning rate of 0 changes an answer.
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
from tests.benchmarks.mail import show
from tests.benchmarks.mail_corpus import DATA

CONFIG = "tiny"
LEARNED_FROM, TESTED_ON = 9001, 9002  # seeds of companies
QUESTIONS = 240  # in a test
LEAST_GAIN, LEAST_AFTER, MOST_MINUTES = 0.4, 0.85, 10.0  # required of mode `masked`
OF_DOCUMENTS = ["--set", "rewards.functions=[{name: rubric, arguments: {wrong: 0}}]"]
"""Wrong answers cost nothing: correct ones are rare at first, so the policy would learn not to answer."""
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
class Experiment:
    """Questions for training and testing, and the test result of the tiny policy before training."""

    train: Questions
    test: Questions
    before: PolicyResult


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """The test results before and after one run."""

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
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds for mode masked; other runs use one seed"
    )
    parts = ["masked", "others", "documents", "real"]
    parser.add_argument("--only", choices=parts, help="run only this part")
    options = parser.parse_args()
    wanted = [options.only] if options.only else parts
    missed = list[str]()
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as scratch:
        directory = Path(scratch)
        if {"masked", "others"} & set(wanted):
            synthetic = make_experiment(
                make_company(directory, LEARNED_FROM), make_company(directory, TESTED_ON), directory / "before"
            )
            runs: list[tuple[str, list[str]]] = []
            if "masked" in wanted:
                runs += [(f"masked, seed {seed}", ["--set", f"data.seed={seed}"]) for seed in options.seeds]
            if "others" in wanted:
                runs += [
                    ("masked, learning rate 0", ["--set", "optimizer.learning_rate=0"]),
                    ("rollout", ["--mode", "rollout"]),
                    ("simple", ["--mode", "simple"]),
                ]
            found = [
                train_and_evaluate(name, more, synthetic, directory / f"run-{place}")
                for place, (name, more) in enumerate(runs)
            ]
            show(
                f"Correct answers to {QUESTIONS} questions about synthetic mail", HEADER, [each.row() for each in found]
            )
            missed += [each.name for each in found if "seed" in each.name and not each.is_enough]
            missed += [each.name for each in found if each.name.endswith(" 0") and each.change.difference]
        if "documents" in wanted:
            train = make_handbook(directory, LEARNED_FROM)
            test = remove_seen(make_handbook(directory, TESTED_ON), train)
            handbooks = make_experiment(train, test, directory / "works-before")
            learned = train_and_evaluate("masked", OF_DOCUMENTS, handbooks, directory / "works-run")
            title = f"Correct answers to {QUESTIONS} questions about a synthetic handbook, and correct document read"
            show(title, HEADER, [learned.row(("accuracy", "read"))])
            missed += ["documents"] if learned.change.low <= 0 else []
        if "real" in wanted and DATA.exists():
            real = real_questions(directory)
            known = make_experiment(real, Questions(real.index, real.scenarios, "test"), directory / "real-before")
            learned = train_and_evaluate("masked", [], known, directory / "real-run")
            title = "Real questions: correct answers, and correct message found"
            show(title, HEADER, [learned.row(("accuracy", "found"))])
    if missed:
        sys.exit(f"requirements not met: {', '.join(missed)}")


def make_company(directory: Path, seed: int) -> Questions:
    """Write the mail of a synthetic company, with plain questions."""
    place = directory / str(seed)
    write_mail(synthesize_mail(seed, 12, 3600, "plain"), place)
    build_mail_index([f"jsonl:{place / MAIL_FILE}"], place / "index")
    return Questions(place / "index", place / "scenarios.jsonl")


def make_handbook(directory: Path, seed: int) -> Questions:
    """Write a synthetic handbook with plain questions, searched by words only."""
    place = directory / f"work-{seed}"
    write_documents(synthesize_documents(seed, 1200, "plain"), place)
    build_documents([f"jsonl:{place / DOCUMENTS_FILE}"], place / "index", DocumentBuildOptions(embedding="none"))
    return Questions(place / "index", place / "scenarios.jsonl")


def remove_seen(asked: Questions, seen: Questions) -> Questions:
    """Return the questions without those that occur in `seen` too, e.g. about a trip to the same town."""
    known = {each.digest for each in load_scenarios(str(seen.scenarios))}
    place = asked.scenarios.with_name("apart.jsonl")
    kept = [each for each in load_scenarios(str(asked.scenarios)) if each.digest not in known]
    place.write_bytes(ScenarioSet.of(kept).to_jsonl())
    return Questions(asked.index, place)


def real_questions(directory: Path) -> Questions:
    """Index the real mail, and split its public questions; the split test stays the same."""
    build_mail_index([f"jsonl:{DATA / 'mail.jsonl.gz'}"], directory / "real-index")
    scenarios = directory / "real.jsonl"
    split = ["scenarios", "split", str(DATA / "questions.jsonl"), "--validation", "0.1", "--keep-test", "--seed", "1"]
    gumshoe(*split, "--out", str(scenarios))
    return Questions(directory / "real-index", scenarios)


def make_experiment(train: Questions, test: Questions, place: Path) -> Experiment:
    return Experiment(train, test, evaluate("tiny", test, place))


def evaluate(policy: str, asked: Questions, place: Path, *more: str, questions: int = QUESTIONS) -> PolicyResult:
    """Evaluate a policy on the questions of a test, with further options of `gumshoe evaluate`."""
    limit = ["--limit", str(questions)] if asked.split == "all" else []
    bounds = ["--max-turns", "6", "--max-tokens", "120"]  # as in training
    words = [*asked.words, "--split", asked.split, *limit, *bounds, *more]
    gumshoe("evaluate", *words, "--policy", policy, "--out", str(place))
    result = EvaluationResult.model_validate_json((place / "metrics.json").read_bytes())
    return result.policies[0]


def train_and_evaluate(name: str, more: list[str], known: Experiment, out: Path) -> TrainingOutcome:
    started = time.monotonic()
    gumshoe("train", "--config", str(CONFIG), *known.train.words, "--out", str(out), *more)
    minutes = (time.monotonic() - started) / 60
    return TrainingOutcome(
        name, known.before, evaluate(f"tiny#{out / 'final'}", known.test, out.with_suffix(".test")), minutes
    )


def gumshoe(*words: str) -> None:
    """Run a command, with its output on this terminal."""
    subprocess.run([sys.executable, "-m", "gumshoe", *words], check=True)


if __name__ == "__main__":
    main()
