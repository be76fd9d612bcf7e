"""Compare what training gains with the example in LangGraph and with Gumshoe's own loop.

`python -m tests.benchmarks.agents_learning --out DIRECTORY`

For each seed, the tiny policy is trained twice with the same budget (the same questions in the same order, steps and
group size): once with Gumshoe's own loop, and once with `--agent examples.langgraph_email.agent:graph`. The questions
are about the mail of one synthetic company. Before and after training, the policy answers greedily, in the same loop as
in training, the same questions about the mail of another company.

A run is made of a training and an evaluation. Run the command again to continue: those that are complete are kept.
"""

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.results import Difference, PolicyResult
from tests.benchmarks.learning import CONFIG, LEARNED_FROM, TESTED_ON, Questions, evaluate, gumshoe, make_company
from tests.benchmarks.mail import show

REPOSITORY = Path(__file__).parents[2]
OWN, LANGGRAPH = "own loop", "LangGraph"
LOOPS = {OWN: (), LANGGRAPH: ("--agent", "examples.langgraph_email.agent:graph")}
"""Options of `gumshoe train` and `gumshoe evaluate` for each loop."""
PASSES = 6  # of 8 episodes per step: half of the configuration's


@dataclass(frozen=True, slots=True)
class Budget:
    """Steps of each training, and number of questions of each evaluation."""

    steps: int
    questions: int

    @property
    def words(self) -> list[str]:
        settings = {
            "optimizer.max_steps": self.steps,
            "optimizer.gradient_accumulation_steps": PASSES,
            "data.eval_size": 8,  # the last step's weights are tested, so that nothing is selected here
        }
        return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@dataclass(frozen=True, slots=True)
class LoopResult:
    """Test results of one loop before training, and after training with each seed."""

    before: PolicyResult
    after: dict[int, PolicyResult]

    @property
    def pooled(self) -> PolicyResult:
        """The results of all seeds as samples of the same questions."""
        return pool(self.after.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs; those in it are continued")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--questions", type=int, default=200, help="number of test questions")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    out, budget = options.out.absolute(), Budget(options.steps, options.questions)
    train, test = (keep_company(out, seed) for seed in (LEARNED_FROM, TESTED_ON))
    before = {name: measure_policy("tiny", name, test, budget, out / f"{slug(name)}-before") for name in LOOPS}
    after: dict[str, dict[int, PolicyResult]] = {name: {} for name in LOOPS}
    for (
        seed
    ) in options.seeds:  # each seed with both loops before the next one, so that an interrupted run compares both
        for name in LOOPS:
            run = out / f"{slug(name)}-{seed}"
            train_policy(name, seed, train, budget, run)
            after[name][seed] = measure_policy(
                f"tiny#{run / 'final'}", name, test, budget, run.with_name(f"{run.name}-test")
            )
    show_results(LoopResult(before[OWN], after[OWN]), LoopResult(before[LANGGRAPH], after[LANGGRAPH]))


def slug(name: str) -> str:
    return name.lower().replace(" ", "-")


def keep_company(directory: Path, seed: int) -> Questions:
    """Return the mail of a synthetic company, which is written if it does not exist."""
    place = directory / str(seed)
    known = Questions(place / "index", place / "scenarios.jsonl")
    return known if (place / "index").exists() and known.scenarios.exists() else make_company(directory, seed)


def train_policy(name: str, seed: int, known: Questions, budget: Budget, run: Path) -> None:
    """Train with a loop and a seed, or continue that; a run that is complete is kept."""
    if (run / "final").exists():
        return
    resumed = ["--resume"] if run.exists() else []
    words = [*known.words, *LOOPS[name], *budget.words, "--set", f"data.seed={seed}"]
    gumshoe("train", "--config", CONFIG, *words, "--out", str(run), *resumed)


def measure_policy(policy: str, name: str, asked: Questions, budget: Budget, place: Path) -> PolicyResult:
    """Evaluate a policy greedily in a loop; `gumshoe evaluate` runs only episodes that are missing."""
    return evaluate(policy, asked, place, *LOOPS[name], questions=budget.questions)


def pool(results: Iterable[PolicyResult]) -> PolicyResult:
    """Return results of the same questions as several samples per question."""
    return reduce(_add_samples, results)


def _add_samples(first: PolicyResult, second: PolicyResult) -> PolicyResult:
    changed = {
        field: {each: (*getattr(first, field)[each], *getattr(second, field)[each]) for each in first.correct_map}
        for field in ("correct_map", "control_reward_map")
    }
    return first.model_copy(update=changed)


def show_results(own: LoopResult, graph: LoopResult) -> None:
    """Print the gains of both loops, and their difference after training."""
    questions = len(own.before.correct_map)
    rows = []
    for name, loop in ((OWN, own), (LANGGRAPH, graph)):
        rows += [[name, f"seed {seed}", *describe(loop.before, each)] for seed, each in loop.after.items()]
        rows.append([name, "all seeds", *describe(loop.before, loop.pooled)])
    show(
        f"Correct answers to {questions} questions about synthetic mail, in percent",
        ["loop", "", "before", "after", "gain", "95 % interval"],
        rows,
    )
    compared = {f"seed {seed}": (own.after[seed], graph.after[seed]) for seed in own.after}
    compared |= {"before training": (own.before, graph.before), "all seeds": (own.pooled, graph.pooled)}
    show(
        f"{LANGGRAPH} minus {OWN} on the same questions, in percentage points",
        ["", OWN, LANGGRAPH, "difference", "95 % interval"],
        [[name, *describe(ours, theirs)] for name, (ours, theirs) in compared.items()],
    )


def describe(baseline: PolicyResult, candidate: PolicyResult) -> Sequence[str]:
    """Return both accuracies, their paired difference and its interval, in percent."""
    found: Difference = compare_policies(candidate, baseline).accuracy
    low, high = (f"{100 * each:+.1f}" for each in (found.low, found.high))
    shown = (f"{100 * each:.1f}" for each in (found.baseline, found.candidate))
    return [*shown, f"{100 * found.difference:+.1f}", f"{low} to {high}"]


if __name__ == "__main__":
    main()
