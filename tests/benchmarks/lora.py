"""Compare ranks and learning rates of the adapter in GRPO.

    OMP_NUM_THREADS=1 taskset -c 1 python -m tests.benchmarks.lora    # 40 minutes, one core

Each run trains the tiny policy for ten steps on the invented mail of one company with the configuration `tiny` and
some of its settings changed, and tests it on another company, as `tests.benchmarks.learning` does.
"""

import argparse
import tempfile
from pathlib import Path

from tests.benchmarks.learning import (
    LEARNED_FROM,
    TESTED_ON,
    make_company,
    make_experiment,
    train_and_evaluate,
)
from tests.benchmarks.mail import show

STEPS = 10
RATE = 4e-3  # of the configuration
RUNS: dict[str, dict[str, object]] = {
    "configuration: rank 8, rate 4e-3": {},
    "rate 4e-4": {"optimizer.learning_rate": RATE / 10},
    "rate 1.6e-2": {"optimizer.learning_rate": RATE * 4},
    "rank 1": {"lora.rank": 1, "lora.alpha": 2},
    "rank 32": {"lora.rank": 32, "lora.alpha": 64},
    "attention only": {"lora.target_modules": "[q_proj, k_proj, v_proj, o_proj]"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds of each run (default: 1)")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="gumshoe-lora-") as scratch:
        place = Path(scratch)
        known = make_experiment(make_company(place, LEARNED_FROM), make_company(place, TESTED_ON), place / "before")
        for seed in options.seeds:
            for number, (name, settings) in enumerate(RUNS.items()):
                all_settings = {**settings, "data.seed": seed, "optimizer.max_steps": STEPS}
                words = [word for key, value in all_settings.items() for word in ("--set", f"{key}={value}")]
                found = train_and_evaluate(f"{name}, seed {seed}", words, known, place / f"run-{seed}-{number}")
                rows.append(found.row())
    show(
        f"Correct answers after {STEPS} steps",
        ["", "before", "after", "gained", "95 %", "minutes"],
        rows,
    )


if __name__ == "__main__":
    main()
