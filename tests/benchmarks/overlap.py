"""Compare rollouts and training that take turns with rollouts that run ahead (`rollouts.lag`).

    OMP_NUM_THREADS=1 python -m tests.benchmarks.overlap speed                    # ten minutes, two cores
    OMP_NUM_THREADS=1 taskset -c 1 python -m tests.benchmarks.overlap accuracy    # an hour, one core

`speed` runs `gumshoe train` with a random model and a fake vLLM server in a process of its own. The server waits before
each turn as a GPU would take, so that a step's episodes take as long as training on them; its answers are scripted.
Seconds of a step are medians over the steps after the second one, then over three runs.

`accuracy` trains the tiny policy on the invented mail of one company with vLLM, and tests it on another one, as
`tests.benchmarks.learning` does, with lags of 0, 1 and 4, each with three seeds and the same number of steps.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from gumshoe.training.records import StepRecord, read_records
from tests.benchmarks.learning import (
    LEARNED_FROM,
    TESTED_ON,
    Questions,
    gumshoe,
    make_company,
    make_experiment,
    train_and_evaluate,
)
from tests.benchmarks.mail import show
from tests.conftest import find_free_port
from tests.inference.fake_vllm import ServerProcess, codec, write_tokenizer
from tests.models import random_model

STEPS, WARM_UP, RUNS = 8, 2, 3
TRAINED_STEPS = 10
SEEDS = (1, 2, 3)
LAGS = (0, 1, 4)
MODEL = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
SETTINGS = {
    "rollouts.num_generations": 8,
    "rollouts.min_group_std": 0,  # all episodes of a group are the same
    "rollouts.most_difference": 1e9,  # the server's log-probabilities are not those of the model
    "rollouts.least_ratio": 0,
    "rollouts.max_tokens": 300,
    "optimizer.per_device_train_batch_size": 8,
    "optimizer.gradient_accumulation_steps": 4,
    "optimizer.max_steps": STEPS,
    "optimizer.beta": 0,
    "model.gradient_checkpointing": "false",
    "model.check_memory": "false",
    "evaluation.baseline": "false",
    "evaluation.eval_steps": 1000,
    "data.eval_size": 1,
    "output.save_steps": 1000,
    "output.report_to": "[]",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "accuracy"])
    parser.add_argument("--turn", type=float, default=1.4, help="seconds that the fake server takes for a turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gumshoe-overlap-") as place:
        if options.part == "speed":
            measure_speed(Path(place), options.turn)
        else:
            measure_accuracy(Path(place))


def measure_speed(place: Path, turn: float) -> None:
    asked = make_company(place, LEARNED_FROM)
    write_tokenizer(place / "model")
    random_model(codec().get_vocab_size(), 1, **MODEL, max_position_embeddings=32768).save_pretrained(place / "model")
    port = find_free_port()
    server = ServerProcess(port, turn)
    server.start()
    try:
        taken: dict[int, list[list[StepRecord]]] = {0: [], 1: []}
        for number in range(RUNS):
            for lag, runs in taken.items():
                runs.append(run_steps(place, asked, f"http://127.0.0.1:{port}", lag, number))
    finally:
        server.kill()

    def median(lag: int, name: str) -> float:
        return float(statistics.median(statistics.median(getattr(each, name) for each in run) for run in taken[lag]))

    base = median(0, "seconds")
    rows = [
        [
            str(lag),
            *(f"{median(lag, name):.1f}" for name in ("seconds", "rollout_seconds", "wait_seconds", "train_seconds")),
            f"{3600 / median(lag, 'seconds'):,.0f}",
            f"{base / median(lag, 'seconds'):.2f}",
        ]
        for lag in taken
    ]
    heads = ["lag", "step, s", "its rollouts, s", "waiting, s", "training, s", "steps per hour", "times as many"]
    show(f"Steps with a server that takes {turn:g} s for a turn", heads, rows)


def run_steps(place: Path, asked: Questions, url: str, lag: int, number: int) -> list[StepRecord]:
    """Train, and return the records of the steps after the first ones."""
    settings = {**SETTINGS, "rollouts.lag": lag, "rollouts.servers": f"[{url}]"}
    sets = [each for name, value in settings.items() for each in ("--set", f"{name}={value}")]
    out = place / f"lag-{lag}-{number}"
    gumshoe("train", "--model", str(place / "model"), *asked.words, "--out", str(out), *sets)
    steps = [each for each in read_records(out / "metrics.jsonl") if isinstance(each, StepRecord)]
    return steps[WARM_UP:]


def measure_accuracy(place: Path) -> None:
    known = make_experiment(make_company(place, LEARNED_FROM), make_company(place, TESTED_ON), place / "before")
    rows = []
    for lag in LAGS:
        for seed in SEEDS:
            words = [
                "--set",
                f"data.seed={seed}",
                "--set",
                f"rollouts.lag={lag}",
                "--set",
                f"optimizer.max_steps={TRAINED_STEPS}",
            ]
            found = train_and_evaluate(f"lag {lag}, seed {seed}", words, known, place / f"lag-{lag}-{seed}")
            rows.append(found.row())
    show("Correct answers after the same number of steps", ["", "before", "after", "gained", "95 %", "minutes"], rows)


if __name__ == "__main__":
    main()
