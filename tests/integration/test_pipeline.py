"""The compiled pipeline from mail to a published adapter, run here by `kfp.local` on the tiny policy."""

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
from gumshoe.mail.build import build_mail_index
from gumshoe.scenarios.scenario import SPLITS, ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.mailboxes import synthesize_mail, write_mail
from tests.conftest import Ran, kill_tree
from tests.pipelines.webhook import webhook
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.group("pipeline")]

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
    """Invented mail, and a few questions of each split."""
    directory = tmp_path_factory.mktemp("mail")
    write_mail(synthesize_mail(8, 4, 600, "plain"), directory)
    every = load_scenarios(str(directory / "scenarios.jsonl"))
    few = [each for split in SPLITS for each in every.only(split).scenarios[: FEW[split]]]
    (directory / "few.jsonl").write_bytes(ScenarioSet.of(few).to_jsonl())
    return directory


def parameters(place: Path, run: str, path: Path, **more: Any) -> Path:
    """A file of parameters."""
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


def words_of(params: Path, out: Path) -> list[str]:
    """Return the command that runs the pipeline."""
    return [
        sys.executable,
        "-m",
        "gumshoe",
        "pipeline",
        "run",
        "train-agent",
        "--params",
        str(params),
        "--out",
        str(out),
    ]


def run_pipeline(params: Path, out: Path, **environment: str) -> Ran:
    """Run the pipeline to its end; policies are measured in the steps' own processes."""
    env = {**os.environ, "COLUMNS": "200", ENGINE_VARIABLE: "transformers", **environment}
    done = subprocess.run(words_of(params, out), env=env, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def states(said: str) -> dict[str, str]:
    """How each step ended, by its name, as it was told."""
    found = {}
    name = ""
    for line in said.splitlines():
        if re.fullmatch(r"[a-z0-9-]+", line):
            name = line
        elif ended := re.match(r"  (done|failed|cached|skipped)\b", line):
            found[name] = ended[1]
    return found


@pytest.mark.ci
def test_from_mail_to_a_refusal_and_then_to_a_published_adapter(
    place: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its training needs a vLLM server of its own, which the step starts; the policies are measured in-process."""
    out = tmp_path / "out"
    served = {**QUICK, "rollouts.engine": "vllm"}
    with webhook() as hook:
        file = parameters(place, "r1", tmp_path / "p.json", settings=served)
        refused = run_pipeline(file, out, GUMSHOE_WEBHOOK=hook.url)
        assert refused.status == 0, refused.err  # a gate that refuses is a run that is done
        assert states(refused.err) == {
            "look-at-sources": "done",
            "ingest": "done",
            "load-scenarios": "done",
            "evaluate-policy": "done",
            "warm-start": "done",
            "place-steps": "done",
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
        (told,) = hook.received
        assert (told["run"], told["state"], told["adapter"]) == ("r1", "SUCCEEDED", None)
        assert "published no adapter" in told["text"]
        assert "does not pass" in told["text"]

        # Once more, with a gate that lets everything pass: what was made is taken from the cache, and from the store.
        file = parameters(place, "r1", tmp_path / "p.json", settings=served, thresholds=ANYTHING)
        passed = run_pipeline(file, out, GUMSHOE_WEBHOOK=hook.url)
        assert passed.status == 0, passed.err
        found = states(passed.err)
        assert {name for name, state in found.items() if state == "cached"} == {
            "ingest",
            "load-scenarios",
            "evaluate-policy",
            "warm-start",
        }
        assert found["publish-adapter"] == "done"
        assert "Took up" in passed.err
        assert "Step 1/2" not in passed.err, "the training was at its end"
        assert hook.received[-1]["adapter"] == "adapters/r1"
    manifest = store.manifest("adapters/latest")
    assert {"adapter_model.safetensors", "metadata.json", "gate.json"} <= {each.path for each in manifest.files}
    assert manifest.settings["base_model"] == "tiny"
    assert "adapter passes" in manifest.settings["gate"]

    reports = [each for each in out.rglob("report.html") if "evaluate-policy-2" in str(each)]
    assert reports
    assert "<html" in reports[0].read_text()[:200]

    build_mail_index([f"jsonl:{place / 'mail.jsonl'}"], tmp_path / "index")
    asked = load_scenarios(str(place / "few.jsonl")).only("test").scenarios[0]
    monkeypatch.setenv(ENGINE_VARIABLE, "transformers")
    answer = run(
        "ask", asked.question, "--adapter", "latest", "--store", out / "store", "--index", tmp_path / "index",
        "--inbox", asked.inbox_address, "--date", asked.query_date, "--max-tokens", "80", "--json",
    )  # fmt: skip
    assert answer.status in (0, 3), answer.err
    told = json.loads(answer.out)
    assert told["policy"] == "tiny#r1"
    assert told["steps"][0]["tool"] == "search_inbox"
    assert told["success"] == (answer.status == 0)

    inbox = str(asked.inbox_address)
    would = run("artifacts", "forget", "--store", out, "--inbox", inbox, "--json")
    places = json.loads(would.out)["removed"]
    assert any("runs/r1/reports" in each for each in places)
    assert any("ingest" in each for each in places)
    assert run("artifacts", "forget", "--store", out, "--inbox", inbox, "--yes").status == 0
    left = [each for each in out.rglob("*") if each.is_file() and asked.question in each.read_text(errors="replace")]
    assert left == []
    assert store.find("adapters/r1") is not None


@pytest.mark.nightly
def test_a_trainer_that_is_killed_is_taken_up_on_another_machine(place: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    long = {**QUICK, "optimizer.max_steps": 6}
    params = parameters(place, "r2", tmp_path / "p.json", settings=long, store=str(store), thresholds=ANYTHING)
    here, there = tmp_path / "here", tmp_path / "there"
    log = tmp_path / "log"
    with log.open("wb") as file:
        env = {**os.environ, ENGINE_VARIABLE: "transformers"}
        process = subprocess.Popen(words_of(params, here), stdout=file, stderr=file, env=env)
    checkpoints = store / "runs" / "r2" / "checkpoints"
    wait_until(lambda: any(checkpoints.glob("*/manifest.json")), process, log.read_text)
    kill_tree(process)
    sent = max(int(each.version.split("-")[1]) for each in Store(str(store)).list("runs/r2/checkpoints"))
    assert sent < 6
    shutil.rmtree(here)  # no file system is shared
    done = run_pipeline(params, there)
    assert done.status == 0, done.err
    assert "Took up" in done.err
    assert re.findall(r"Step (\d)/6", done.err) == [str(step) for step in range(sent + 1, 7)]
    assert states(done.err)["publish-adapter"] == "done"


@pytest.mark.nightly
def test_a_step_that_fails_is_tried_again_and_what_stays_wrong_is_said(place: Path, tmp_path: Path) -> None:
    lacking = {**QUICK, "data.train_size": 1, "optimizer.per_device_train_batch_size": 8}  # two groups of four
    bad = parameters(place, "r3", tmp_path / "p.json", settings=lacking)
    done = run_pipeline(bad, tmp_path / "out")
    assert (done.status, done.code) == (1, "pipelines.local-run-failed")
    assert states(done.err)["train-grpo"] == "failed"
    assert done.err.count("\ntrain-grpo\n") == 4, "three times more"
    last = done.err[done.err.rindex("error: ") :]
    assert "train-grpo" in last
    assert "[settings.too-few-scenarios]" in last
    assert states(done.err)["notify"] == "done"
