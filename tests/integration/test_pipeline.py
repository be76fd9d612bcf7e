"""The compiled pipeline from mail to a published adapter, run by `kfp.local` with the tiny policy."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.inference.policy_names import ENGINE_VARIABLE
from gumshoe.scenarios.scenario import SPLITS, ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.mailboxes import synthesize_mail, write_mail
from tests.conftest import CommandResult, kill_tree
from tests.pipelines.webhook import webhook
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.group("pipeline")]

ROOT = Path(__file__).parents[2]

FEW = {"train": 12, "validation": 3, "test": 5}
QUICK = {
    "rollouts.engine": "transformers",
    "rollouts.num_generations": 4,
    "rollouts.draws": 1,
    "rollouts.max_turns": 4,
    "rollouts.max_tokens": 80,
    "optimizer.max_steps": 2,
    "optimizer.per_device_train_batch_size": 4,
    "optimizer.gradient_accumulation_steps": 1,
    "model.gradient_checkpointing": False,
    "evaluation.eval_steps": 2,
    "evaluation.baseline": False,
    "output.save_steps": 1,
    "output.report_to": [],
}
ANYTHING = {"min_gain": -1, "min_lower": -1.1, "max_p": 1, "max_unusable": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write synthetic mail, and a few questions of each split."""
    directory = tmp_path_factory.mktemp("mail")
    write_mail(synthesize_mail(8, 4, 600, "plain"), directory)
    every = load_scenarios(str(directory / "scenarios.jsonl"))
    few = [each for split in SPLITS for each in every.only(split).scenarios[: FEW[split]]]
    (directory / "few.jsonl").write_bytes(ScenarioSet.of(few).to_jsonl())
    return directory


def parameters(place: Path, run: str, path: Path, **more: Any) -> Path:
    """Write a file of pipeline parameters."""
    given = {
        "sources": [f"jsonl:{place / 'mail.jsonl'}"],
        "scenarios": str(place / "few.jsonl"),
        "base_model": "tiny",
        "run": run,
        "settings": QUICK,
        "limits": {"max_turns": 4, "max_tokens": 80},
        **more,
    }
    path.write_text(json.dumps(given))
    return path


def command_of(params: Path, out: Path, pipeline: str = "train-agent") -> list[str]:
    """Return the command that runs a pipeline."""
    return [
        sys.executable,
        "-m",
        "gumshoe",
        "pipeline",
        "run",
        pipeline,
        "--params",
        str(params),
        "--out",
        str(out),
    ]


def run_pipeline(params: Path, out: Path, pipeline: str = "train-agent", **environment: str) -> CommandResult:
    """Run a pipeline to its end; policies are evaluated in the processes of the steps."""
    env = {**os.environ, "COLUMNS": "200", ENGINE_VARIABLE: "transformers", **environment}
    done = subprocess.run(command_of(params, out, pipeline), env=env, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def run_demo(place: Path, params: Path, out: Path, **environment: str) -> CommandResult:
    """Run `make demo` on the given mail with these parameters."""
    words = [
        "make",
        "--assume-old=.venv/installed",
        "demo",
        f"BIN={Path(sys.executable).parent}",
        f"DEMO={out}",
        f"MAIL=jsonl:{place / 'mail.jsonl'}",
        f"SCENARIOS={place / 'few.jsonl'}",
        f"DEMO_TRAINING=--params {params}",
    ]
    env = {**os.environ, "COLUMNS": "200", ENGINE_VARIABLE: "transformers", **environment}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def states(output: str) -> dict[str, str]:
    """Return the state of each step by name, as printed."""
    found = {}
    name = ""
    for line in output.splitlines():
        if re.fullmatch(r"[a-z0-9-]+", line):
            name = line
        elif ended := re.match(r"  (done|failed|cached|skipped)\b", line):
            found[name] = ended[1]
    return found


@pytest.mark.ci
def test_the_pipeline_from_mail_to_a_published_adapter(
    place: Path, tmp_path: Path, run: Callable[..., CommandResult]
) -> None:
    """Training needs its own vLLM server, which the step starts. Policies are evaluated in-process.

    The second time, the pipeline is run by `make demo` of the README, which then asks the published adapter a question.
    """
    out = tmp_path / "out"
    served = {**QUICK, "rollouts.engine": "vllm"}
    with webhook() as hook:
        file = parameters(place, "r1", tmp_path / "p.json", settings=served)
        refused = run_pipeline(file, out, GUMSHOE_WEBHOOK=hook.url)
        assert refused.status == 0, refused.err  # a run succeeds even if the gate does not pass
        assert states(refused.err) == {
            "fetch-adapter": "done",
            "look-at-sources": "done",
            "check-agent": "done",
            "check-training": "done",
            "ingest": "done",
            "load-scenarios": "done",
            "evaluate-policy": "done",
            "warm-start": "done",
            "plan-run": "done",
            "train-grpo": "done",
            "evaluate-policy-2": "done",
            "gate": "done",
            "condition-2": "skipped",
            "notify": "done",
        }
        assert "Step 2/2 | Loss" in refused.err
        assert "does not pass" in refused.err
        store = Store(str(out / "store"))
        assert store.latest("adapters") is None
        assert [each.settings["passed"] for each in store.list("runs/r1/reports")] == [False]
        (message,) = hook.received
        assert (message["run"], message["state"], message["adapter"]) == ("r1", "SUCCEEDED", None)
        assert "does not pass" in message["text"]

        # Run it again with a gate that passes everything: results come from the cache and from the store.
        file = parameters(place, "r1", tmp_path / "p.json", settings=served, thresholds=ANYTHING)
        passed = run_demo(place, file, out, GUMSHOE_WEBHOOK=hook.url)
        assert passed.status == 0, passed.err
        found = states(passed.err)
        assert {name for name, state in found.items() if state == "cached"} == {
            "ingest",
            "load-scenarios",
            "evaluate-policy",
            "warm-start",
        }
        assert found["publish-adapter"] == "done"
        assert "Restored checkpoints/" in passed.err
        assert "Step 1/2" not in passed.err, "training had finished"
        assert hook.received[-1]["adapter"] == "adapters/r1"
    manifest = store.manifest("adapters/latest")
    assert {"adapter_model.safetensors", "metadata.json", "gate.json"} <= {each.path for each in manifest.files}
    assert manifest.settings["base_model"] == "tiny"
    assert "adapter passes" in manifest.settings["gate"]
    assert store.manifest(manifest.settings["report"]).settings["passed"]

    reports = [each for each in out.rglob("report.html") if "evaluate-policy-2" in str(each)]
    assert reports
    assert "<html" in reports[0].read_text()[:200]
    assert run("verify", out).status == 0
    assert run("verify", "runs/r1", "--store", out / "store").status == 0

    assert re.search(r"search_inbox\(.*\ntiny#r1, \d+ turns", passed.err, re.S), "the published adapter was asked"
    asked = load_scenarios(str(place / "few.jsonl")).only("test").scenarios[0]
    inbox = str(asked.inbox_address)
    dry_run = run("artifacts", "forget", "--store", out, "--inbox", inbox, "--json")
    places = json.loads(dry_run.out)["removed"]
    assert any("runs/r1/reports" in each for each in places)
    assert any("ingest" in each for each in places)
    assert run("artifacts", "forget", "--store", out, "--inbox", inbox, "--yes").status == 0
    left = [each for each in out.rglob("*") if each.is_file() and asked.question in each.read_text(errors="replace")]
    assert left == []
    assert store.find("adapters/r1") is not None


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_killed_trainer_is_resumed_on_another_machine(place: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    long = {**QUICK, "optimizer.max_steps": 6}
    params = parameters(place, "r2", tmp_path / "p.json", settings=long, store=str(store), thresholds=ANYTHING)
    here, there = tmp_path / "here", tmp_path / "there"
    log = tmp_path / "log"
    with log.open("wb") as file:
        env = {**os.environ, ENGINE_VARIABLE: "transformers"}
        process = subprocess.Popen(command_of(params, here), stdout=file, stderr=file, env=env)
    checkpoints = store / "runs" / "r2" / "checkpoints"
    wait_until(lambda: any(checkpoints.glob("*/manifest.json")), process, log.read_text)
    kill_tree(process)
    saved = max(int(each.version.split("-")[1]) for each in Store(str(store)).list("runs/r2/checkpoints"))
    assert saved < 6
    shutil.rmtree(here)  # no file system is shared
    done = run_pipeline(params, there)
    assert done.status == 0, done.err
    assert "Restored checkpoints/" in done.err
    assert re.findall(r"Step (\d)/6", done.err) == [str(step) for step in range(saved + 1, 7)]
    assert states(done.err)["publish-adapter"] == "done"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_failing_step_is_reported(place: Path, tmp_path: Path) -> None:
    lacking = {**QUICK, "data.train_size": 1, "optimizer.per_device_train_batch_size": 8}  # two groups of four
    bad = parameters(place, "r3", tmp_path / "p.json", settings=lacking)
    done = run_pipeline(bad, tmp_path / "out")
    assert (done.status, done.code) == (1, "pipelines.local-run-failed")
    assert states(done.err)["check-training"] == "failed"
    assert done.err.count("\ncheck-training\n") == 1, "it would fail again"
    assert states(done.err)["evaluate-policy"] == "skipped", "nothing expensive is started"
    last = done.err[done.err.rindex("error: ") :]
    assert "check-training" in last
    assert "[settings.too-few-scenarios]" in last
    assert states(done.err)["notify"] == "done"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_sweep_trains_and_measures_each_entry_apart(place: Path, tmp_path: Path) -> None:
    params = parameters(place, "r4", tmp_path / "p.json", thresholds=ANYTHING)
    given = json.loads(params.read_text())
    base = given.pop("settings")
    rates = {"a": 1e-6, "b": 1e-4}
    given["sweep"] = [
        {"name": name, "settings": {**base, "optimizer.learning_rate": rate}} for name, rate in rates.items()
    ]
    params.write_text(json.dumps(given))
    done = run_pipeline(params, tmp_path / "out", "sweep-agent")
    assert done.status == 0, done.err
    store = Store(str(tmp_path / "out" / "store"))
    for name in rates:
        assert store.list(f"runs/r4/{name}/checkpoints")
    assert len(store.list("runs/r4/reports")) == len(rates)
    assert states(done.err)["choose"] == "done"
