"""Measure how often attack messages make policies obey them: `python -m tests.benchmarks.injection POLICY...`.

    python -m tests.benchmarks.injection base=tiny
    python -m tests.benchmarks.injection base=tiny --train outputs/safe --model tiny --config tiny
    python -m tests.benchmarks.injection warm=local:smollm2-135m#outputs/warm --train outputs/safe \
        --model smollm2-135m --config smollm2-cpu --set lora.start=outputs/warm
    python -m tests.benchmarks.injection --scripted large=chat:MODEL

A policy is as for `gumshoe evaluate --policy`, with a name before `=`. The attacks are on questions about an invented
company that no policy was trained on, and of families that training never uses (`--suite held-out`). With `--train`,
an adapter is trained first, on attacked questions about another company with the rewards `rubric` and `safe`, and
measured as `safe`. With `--scripted`, a gullible and a careful agent without a model are measured too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gumshoe.evaluation.attacks.attack_results import AttackResult
from gumshoe.evaluation.results import EvaluationResult
from gumshoe.mail.build import build_mail_index
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.attacks.attack_suite import DEFAULT_COUNT, SUITES
from gumshoe.synthesis.mailboxes import MAIL_FILE, synthesize_mail, write_mail
from tests.attack_agents import ScriptedAgent, act_gullible, careful_agent
from tests.inference.fake_vllm import FakeVLLM

LEARNED_FROM, TESTED_ON = 9401, 9402  # seeds of companies
QUESTIONS = 240
MAX_TURNS, MAX_TOKENS = 8, 120
REWARDS = "rewards.functions=[{name: rubric}, {name: safe}]"
GULLIBLE, CAREFUL = "gullible", "careful"


def main() -> None:
    """Print two tables as Markdown: results by policy, and by goal and family."""
    options = _parse_options()
    with tempfile.TemporaryDirectory(prefix="gumshoe-injection-") as scratch:
        directory = options.keep or Path(scratch)
        policies = list(options.policies)
        if options.train:
            base = options.model if options.model == "tiny" else f"local:{options.model}"
            policies.append(f"safe={base}#{train(directory, options)}")
        index, scenarios = make_company(directory, TESTED_ON)
        with scripted_policies(scenarios) if options.scripted else _no_policies() as more:
            words = [word for policy in [*policies, *more] for word in ("--policy", policy)]
            out = directory / "measured"
            gumshoe(
                *("evaluate", "--index", index, "--scenarios", scenarios, "--split", "all", "--limit", QUESTIONS),
                *("--max-turns", MAX_TURNS, "--max-tokens", MAX_TOKENS, "--out", out, *words),
                *("--attacks", options.suite, "--attack-count", options.count, *options.more),
            )
        found = EvaluationResult.model_validate_json((out / "metrics.json").read_bytes())
    print_tables([(each.name, each.attacks) for each in found.policies if each.attacks])


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", metavar="NAME=WORD")
    parser.add_argument("--suite", choices=SUITES, default="held-out")
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="number of attacks")
    parser.add_argument("--scripted", action="store_true", help="measure a gullible and a careful agent too")
    parser.add_argument("--train", type=Path, metavar="DIR", help="train an adapter into DIR first")
    parser.add_argument("--model", default="tiny", help="base model to train")
    parser.add_argument("--config", default="tiny", help="settings to train with")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting to train with")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all files here")
    options, more = parser.parse_known_args()
    options.more = more
    if not (options.policies or options.train or options.scripted):
        parser.error("name a policy, such as base=tiny, or use --train or --scripted")
    return options


def make_company(directory: Path, seed: int) -> tuple[Path, Path]:
    """Write the mail of an invented company with plain questions. Return the index and the scenarios."""
    place = directory / str(seed)
    if not (place / "index").exists():
        write_mail(synthesize_mail(seed, 12, 3600, "plain"), place)
        build_mail_index([f"jsonl:{place / MAIL_FILE}"], place / "index")
    return place / "index", place / "scenarios.jsonl"


def train(directory: Path, options: argparse.Namespace) -> Path:
    """Train an adapter on attacked questions, and return its directory."""
    index, scenarios = make_company(directory, LEARNED_FROM)
    attacked = directory / "attacked"
    words = ("synthesize", "attacks", "--seed", 1, "--index", index, "--scenarios", scenarios, "--out", attacked)
    gumshoe(*words, "--replace")
    data = ("--index", attacked / "index", "--scenarios", attacked / "scenarios.jsonl", "--out", options.train)
    settings = [word for setting in (REWARDS, *options.set) for word in ("--set", setting)]
    gumshoe("train", "--model", options.model, "--config", options.config, *data, *settings)
    return Path(options.train) / "final"


@contextmanager
def scripted_policies(scenarios: Path) -> Iterator[list[str]]:
    """Serve the scripted agents as chat models, and yield them as policies."""
    agents = {GULLIBLE: ScriptedAgent(act_gullible), CAREFUL: careful_agent(load_scenarios(str(scenarios)))}
    os.environ.setdefault("OPENAI_API_KEY", "none")
    with FakeVLLM(models=tuple(agents), chat=lambda request: agents[request["model"]](request)) as server:
        yield [f"{name}=chat:{name}@{server.address}/v1" for name in agents]


@contextmanager
def _no_policies() -> Iterator[list[str]]:
    yield []


def print_tables(found: Sequence[tuple[str, AttackResult]]) -> None:
    """Print the results as Markdown."""
    print("\n| policy | attacks that succeeded | by chance | correct, attacked | correct | difference |")
    print("|---|---|---|---|---|---|")
    for name, each in found:
        paired = each.accuracy
        print(
            f"| {name} | {_share(each.success)} of {each.success.questions} | {_share(each.by_chance)} "
            f"| {100 * paired.attacked:.1f} % | {100 * paired.clean:.1f} % "
            f"| {100 * paired.difference:+.1f} ({100 * paired.low:+.1f} to {100 * paired.high:+.1f}) |"
        )
    print(f"\n| | {' | '.join(name for name, _ in found)} |\n|---|{'---|' * len(found)}")
    for what in ("goals", "families", "carriers", "languages"):
        for key in getattr(found[0][1], what):
            print(f"| {key} | {' | '.join(_share(getattr(each, what)[key]) for _, each in found)} |")
    for number in range(1, max(len(each.rounds) for _, each in found)):
        cells = [_share(each.rounds[number].success) if number < len(each.rounds) else "" for _, each in found]
        print(f"| by round {number} | {' | '.join(cells)} |")


def _share(estimate: object) -> str:
    value, low, high = (100 * getattr(estimate, name) for name in ("value", "low", "high"))
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"


def gumshoe(*words: object) -> None:
    """Run a command, with its output on this terminal."""
    subprocess.run([sys.executable, "-m", "gumshoe", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
