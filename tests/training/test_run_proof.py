"""The proof of a run: what it counts, and that every changed number is found."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError
from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.metrics import compute_metrics
from gumshoe.evaluation.predictions import Prediction, read_predictions, write_predictions
from gumshoe.evaluation.proof.held_out import copy_run_evidence, find_run_proof, write_held_out_proof
from gumshoe.evaluation.proof.proof_models import PROOF, TRAINING, Proof, read_proof
from gumshoe.evaluation.proof.proof_page import list_claims
from gumshoe.evaluation.results import METRICS_FILE, PREDICTIONS, TRAJECTORIES
from gumshoe.rewards.scoring import JudgedTrajectory
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.training.episode_records import read_episodes, truncate_episodes
from gumshoe.training.proof_check import verify_proof
from gumshoe.training.run_proof import compute_run_proof, write_run_proof
from gumshoe.training.run_spec import ATTEMPTS, BEST, EPISODES, FINAL, METRICS, SPEC
from tests.conftest import CommandResult
from tests.errors import raises
from tests.evaluation.predictions import answers, evaluation, result
from tests.training.recorded_run import episode, make_run, scenario

pytestmark = pytest.mark.ci

Run = Callable[..., CommandResult]
BEFORE, AFTER = "+" * 4 + "-" * 8, "+" * 3 + "-" + "+" * 6 + "-" * 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run with a proof, and beside it `evaluated`, an evaluation of its adapter."""
    directory = make_run(tmp_path_factory.mktemp("proof") / "run")
    write_run_proof(directory)
    place = directory.with_name("evaluated")
    place.mkdir()
    write_evaluation(place, answers(BEFORE, "base"), answers(AFTER, "adapter"))
    assert write_held_out_proof(place, {"adapter": directory / FINAL}) is not None
    return directory


@pytest.fixture
def directory(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy of a run with a proof, which a test may change."""
    return Path(shutil.copytree(recorded, tmp_path / "run"))


@pytest.fixture
def evaluated(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy of an evaluation with a proof, which a test may change."""
    return Path(shutil.copytree(recorded.with_name("evaluated"), tmp_path / "evaluated"))


def write_evaluation(place: Path, *policies: list[Prediction]) -> None:
    results = [result(each).model_copy(update={"metrics": compute_metrics(each)}) for each in policies]
    compared = tuple(compare_policies(each, results[0]) for each in results[1:])
    evaluation(*results).model_copy(update={"comparisons": compared}).write(place)
    write_predictions(place / PREDICTIONS, [each for own in policies for each in own])


def test_a_proof_counts_what_the_run_recorded(directory: Path) -> None:
    proof = read_proof(directory)
    versions, ratio, failures = proof.policy_versions, proof.importance_ratio, proof.infrastructure
    assert versions is not None
    assert (versions.completions, versions.proven, versions.share, versions.rejected) == (12, 12, 1.0, 4)
    assert ratio is not None
    assert [ratio.tokens, ratio.lowest, ratio.highest] == pytest.approx([36, 0.87, 1.13])
    assert failures is not None
    assert (failures.retried, failures.retry_causes) == (2, {"inference.server-gone": 2})
    assert (failures.groups_dropped, failures.drop_causes) == (1, {"rewards.judge-failed": 1})
    assert (failures.fake_zeros, failures.incomplete_groups) == (0, 0)
    split, unanswerable = proof.split_episodes, proof.unanswerable
    assert split is not None
    assert (split.episodes, split.split, split.reasons) == (10, 2, {"history edited": 2})
    assert unanswerable is not None
    assert (unanswerable.scenarios, unanswerable.unanswerable) == (5, 1)
    assert set(proof.rewards) == {"rubric", "reward"}
    learned = proof.learned_from
    assert (learned.training_content, learned.validation_content, learned.index) == ("trained", "validated", "indexed")
    assert (learned.steps, learned.scenarios, learned.episodes, learned.tokens) == (2, 3, 6, 36)
    assert set(proof.adapters) == {FINAL, BEST}
    assert proof.held_out is None
    assert verify_proof(directory).differences == ()


def test_hours_include_restarts_and_lost_steps(directory: Path) -> None:
    cost = read_proof(directory).cost
    assert (cost.attempts, cost.attempts_timed, cost.attempts_killed, cost.steps_repeated) == (2, 2, 1, 1)
    assert cost.wall_hours == pytest.approx(1 + 2, abs=1e-3), "the killed attempt counts up to its last step"
    assert cost.gpu_hours == pytest.approx(1 * 2 + 2 * 4, abs=1e-3)
    assert cost.cpu_hours == pytest.approx(3 * 8, abs=1e-3)
    assert cost.amount == pytest.approx(10 * 2.5 + 24 * 0.5, abs=1e-2)


def test_without_prices_there_are_no_costs(tmp_path: Path) -> None:
    free = {"costs.gpu_hour": "null", "costs.cpu_hour": "null"}
    assert compute_run_proof(make_run(tmp_path / "run", **free)).cost.amount is None


def test_a_run_without_episodes_claims_nothing_about_them(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", mode="simple")
    (directory / EPISODES).write_text("")
    proof = write_run_proof(directory)
    assert (proof.policy_versions, proof.infrastructure, proof.rewards) == (None, None, {})
    assert proof.learned_from.tokens > 0
    assert verify_proof(directory).differences == ()


def test_a_cpu_run_has_no_hours_of_gpu(directory: Path) -> None:
    path = directory / ATTEMPTS
    path.write_text(re.sub(r'"gpus":\d+', '"gpus":0', path.read_text()))
    cost = compute_run_proof(directory).cost
    assert (cost.gpu_hours, round(cost.cpu_hours)) == (0, 24)


def edit_episodes(directory: Path, change: Callable[[dict[str, Any]], Any], count: int = 1) -> None:
    """Change the first records of episodes."""
    path = directory / EPISODES
    lines = [json.loads(each) for each in path.read_text().splitlines()]
    for each in lines[:count]:
        change(each)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each.update(policy="rr7-1-policy-7"),  # a stale adapter
        lambda each: each["compared"].update(difference=0.5),  # other weights under the right name
        lambda each: each["compared"].update(difference="NaN"),
        lambda each: each["compared"].update(tokens=0),  # nothing was compared
    ],
)
def test_an_unproven_completion_counts(change: Callable[[dict[str, Any]], Any], directory: Path) -> None:
    edit_episodes(directory, change)
    proof = compute_run_proof(directory)
    assert proof.policy_versions is not None
    assert (proof.policy_versions.completions, proof.policy_versions.proven) == (12, 10)
    assert [each.claim for each in list_claims(proof) if each.holds is False] == [
        "Completions with a proven policy version"
    ]


@pytest.mark.parametrize(
    ("lag", "change", "proven"),
    [
        (1, {"staleness": 1}, 12),
        (1, {"staleness": 1, "later_policies": ["rr7-2-policy-1"], "difference": 0.15}, 12),
        (1, {"staleness": 1, "difference": 0.25}, 8),  # more than twice the bound
        (1, {"staleness": 0}, 8),
        (1, {"staleness": 3}, 8),
        (0, {"staleness": 1}, 8),
        (1, {"staleness": 1, "later_policies": ["rr7-2-policy-9"]}, 8),
    ],
)
def test_an_older_policy_is_proven_as_far_as_the_lag_allows(
    lag: int, change: dict[str, Any], proven: int, tmp_path: Path
) -> None:
    directory = make_run(tmp_path / "run", **({"rollouts.lag": lag} if lag else {}))

    def make_older(each: dict[str, Any]) -> None:
        if each["step"] == 2 and each["compared"] and each["compared"]["trained"]:
            fields = dict(change)
            each["compared"]["difference"] = fields.pop("difference", 0.001)
            each.update({"policy": "rr7-1-policy-0", **fields})

    lines = [json.loads(each) for each in (directory / EPISODES).read_text().splitlines()]
    for each in lines:
        make_older(each)
    (directory / EPISODES).write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    proof = compute_run_proof(directory)
    assert proof.policy_versions is not None
    assert (proof.policy_versions.completions, proof.policy_versions.proven) == (12, proven)


def test_a_name_that_two_steps_used_proves_nothing(directory: Path) -> None:
    for name in (METRICS, EPISODES):
        path = directory / name
        path.write_text(path.read_text().replace("rr7-2-policy-1", "rr7-1-policy-0"))
    proof = compute_run_proof(directory)
    assert proof.policy_versions is not None
    assert proof.policy_versions.share == 0


@pytest.mark.parametrize(
    ("ending", "fakes"), [("no answer", 1), ("agent failed", 1), ("answer", 1), ("context full", 0)]
)
def test_a_scored_episode_without_a_completion_is_a_fake_zero(ending: str, fakes: int, directory: Path) -> None:
    edit_episodes(directory, lambda each: each.update(completions=0, ending=ending))
    found = compute_run_proof(directory).infrastructure
    assert found is not None
    assert found.fake_zeros == fakes


def test_a_group_that_lacks_an_episode_is_incomplete(directory: Path) -> None:
    path = directory / EPISODES
    rest = path.read_text().splitlines(keepends=True)[1:]
    path.write_text("".join(rest))
    found = compute_run_proof(directory).infrastructure
    assert found is not None
    assert found.incomplete_groups == 1
    path.write_text("".join([*rest, rest[-1]]))
    found = compute_run_proof(directory).infrastructure
    assert found is not None
    assert found.incomplete_groups == 2, "one episode counts twice"


def leaves(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value in a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path
        return
    for name, each in items:
        yield from leaves(each, *path, name)


def changed(value: Any) -> Any:
    """Return another value that has the same form, so that it is not found for its form."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value + 0.001
        case str():
            return ("1" if value.startswith("0") else "0") + value[1:]
        case None:
            return 0.5
    raise AssertionError(value)


def tamper(path: Path, leaf: tuple[str | int, ...]) -> None:
    document = json.loads(path.read_text())
    inner = document
    for name in leaf[:-1]:
        inner = inner[name]
    inner[leaf[-1]] = changed(inner[leaf[-1]])
    path.write_text(json.dumps(document))


def is_found(directory: Path) -> bool:
    try:
        return bool(verify_proof(directory).differences)
    except GumshoeError:
        return True


def find_missed(directory: Path, prefix: str = "") -> list[tuple[str | int, ...]]:
    """Change each value of a proof, one after the other, and return those that a verification does not find."""
    path = directory / PROOF
    text = path.read_text()
    missed = []
    for leaf in leaves(json.loads(text)):
        if str(leaf[0]).startswith(prefix):
            tamper(path, leaf)
            missed += [] if is_found(directory) else [leaf]
            path.write_text(text)
    assert verify_proof(directory).differences == ()
    return missed


def test_every_changed_value_of_a_runs_proof_is_found(directory: Path) -> None:
    assert find_missed(directory) == []


@pytest.mark.parametrize("prefix", ["held_out", "files", "adapters", "cost"])
def test_every_changed_value_of_an_evaluations_proof_is_found(
    prefix: str, evaluated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gumshoe.training.proof_check.check_evaluation", lambda _: ())  # it is slow
    assert find_missed(evaluated, prefix) == []


@pytest.mark.parametrize("name", [SPEC, METRICS, EPISODES, ATTEMPTS, f"{FINAL}/adapter_model.safetensors"])
def test_a_changed_file_is_found(name: str, directory: Path) -> None:
    path = directory / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert is_found(directory)


STEP_FIELDS = {
    "reward": lambda each: each["rewards"].update(reward=9.0),
    "rewards.rubric": lambda each: each["rewards"].update(rubric=9.0),
    "endings": lambda each: each.update(ending="max turns"),
    "split_episodes": lambda each: each.update(splits=["other opening"]),
    "split_reasons.other opening": lambda each: each.update(splits=["other opening"]),
    "segments": lambda each: each.update(splits=["other opening"]),
    "sampled_tokens": lambda each: each.update(tokens=99),
    "trainable_tokens": lambda each: each["compared"].update(trained=1),
    "importance_ratio": lambda each: each["compared"].update(mean_ratio=0.5),
    "logprob_difference": lambda each: each["compared"].update(difference=0.05),
    "scenarios": lambda each: each.update(scenario="q9"),
}


@pytest.mark.parametrize("field", STEP_FIELDS)
def test_episodes_that_contradict_their_step_are_found_even_with_a_new_proof(field: str, directory: Path) -> None:
    edit_episodes(directory, STEP_FIELDS[field])
    write_run_proof(directory)
    claims = [each.claim for each in verify_proof(directory).differences]
    assert any(each.startswith(f"{METRICS}: step 1: {field}") for each in claims), claims


def test_a_step_may_use_a_scenario_twice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", (1, 2, 1))
    write_run_proof(run)
    assert verify_proof(run).differences == ()


def test_attempts_that_are_shorter_than_their_steps_are_found(directory: Path) -> None:
    path = directory / ATTEMPTS
    path.write_text(re.sub(r'"time":[\d.]+', '"time":1.0', path.read_text()))
    write_run_proof(directory)
    assert [each.claim for each in verify_proof(directory).differences] == [f"{ATTEMPTS}: hours"]


def test_an_evaluation_completes_the_proof_of_its_adapter(evaluated: Path) -> None:
    proof = read_proof(evaluated)
    held_out = proof.held_out
    assert held_out is not None
    assert (held_out.wins, held_out.losses, held_out.questions) == (6, 1, 12)
    assert held_out.gain == pytest.approx(5 / 12)
    assert held_out.low < held_out.gain < held_out.high
    assert held_out.adapter == proof.adapters[FINAL]
    assert {each.path for each in proof.files} >= {METRICS_FILE, PREDICTIONS, f"{TRAINING}/{EPISODES}"}
    found = verify_proof(evaluated)
    assert (found.differences, set(found.absent)) == ((), {FINAL, BEST})


def test_a_changed_verdict_is_found_even_with_a_new_proof(evaluated: Path, recorded: Path) -> None:
    path = evaluated / PREDICTIONS
    first, *rest = read_predictions(path)
    write_predictions(path, [first.model_copy(update={"correct": not first.correct}), *rest])
    assert write_held_out_proof(evaluated, {"adapter": recorded / FINAL}) is not None
    claims = {each.claim for each in verify_proof(evaluated).differences}
    assert {f"{METRICS_FILE}: base: accuracy.value", f"{METRICS_FILE}: adapter and base: wins"} <= claims
    assert f"{PREDICTIONS}: base: {first.scenario}/0: correct" in claims


def test_questions_that_the_adapter_was_trained_on_prove_nothing(evaluated: Path, recorded: Path) -> None:
    path = evaluated / METRICS_FILE
    found = json.loads(path.read_bytes())
    found["policies"][-1] |= {"is_unseen": False, "seen": 1}
    path.write_text(json.dumps(found))
    assert write_held_out_proof(evaluated, {"adapter": recorded / FINAL}) is None


@pytest.mark.parametrize("field", ["correct_map.q1", "control_reward_map.q1", "episodes", "run_again"])
def test_a_changed_result_is_found_even_with_a_new_proof(field: str, evaluated: Path, recorded: Path) -> None:
    path = evaluated / METRICS_FILE
    name, _, question = field.partition(".")
    tamper(path, ("policies", 1, name, question, 0) if question else ("policies", 1, name))
    assert write_held_out_proof(evaluated, {"adapter": recorded / FINAL}) is not None
    claims = [each.claim for each in verify_proof(evaluated).differences]
    assert any(each.startswith(f"{METRICS_FILE}: adapter: {field}") for each in claims), claims


def predict(policy: str, number: int, made: Trajectory) -> Prediction:
    """Return the prediction of an episode with a correct answer."""
    verdict = JudgedTrajectory(made.scenario, made.sample, made.record.answer, correct=True, why="because")
    return Prediction.from_trajectory(policy, scenario(number), made, [("heuristic", verdict)], 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("answer", "Friday"),
        ("searches", 7),
        ("sources", ("<2@x.example>",)),
        ("tries", 3),
        ("detail", "none"),
        ("does_not_know", True),
    ],
)
def test_predictions_that_contradict_their_episodes_are_found(
    field: str, value: object, recorded: Path, tmp_path: Path
) -> None:
    episodes = {name: [episode(number, 0, name) for number in (1, 2)] for name in ("base", "adapter")}
    own = [[predict(name, number, each) for number, each in enumerate(made, 1)] for name, made in episodes.items()]
    write_evaluation(tmp_path, *own)
    (tmp_path / TRAJECTORIES).mkdir()
    for name, made in episodes.items():
        (tmp_path / TRAJECTORIES / f"{name}.jsonl").write_text("".join(f"{each.to_json()}\n" for each in made))
    assert write_held_out_proof(tmp_path, {"adapter": recorded / FINAL}) is not None
    assert verify_proof(tmp_path).differences == ()
    changed = own[1][0].model_copy(update={field: value})
    write_predictions(tmp_path / PREDICTIONS, [*own[0], changed, own[1][1]])
    assert write_held_out_proof(tmp_path, {"adapter": recorded / FINAL}) is not None
    claims = [each.claim for each in verify_proof(tmp_path).differences]
    assert f"{PREDICTIONS}: adapter: q1/0: {field}" in claims


def test_an_adapter_is_proven_only_by_its_own_run(directory: Path, tmp_path: Path) -> None:
    assert find_run_proof(directory / FINAL) == directory
    alone = tmp_path / "alone"
    shutil.copytree(directory / BEST, alone)
    assert find_run_proof(alone) is None
    copy_run_evidence(directory, alone / TRAINING)
    assert find_run_proof(alone) == alone / TRAINING
    (alone / "adapter_model.safetensors").write_bytes(b"other weights")
    assert find_run_proof(alone) is None


def test_a_policy_without_a_proven_run_has_no_proof(directory: Path, tmp_path: Path) -> None:
    place = tmp_path / "measured"
    place.mkdir()
    write_evaluation(place, answers(BEFORE, "base"), answers(AFTER, "adapter"))
    assert write_held_out_proof(place, {}) is None
    (directory / PROOF).unlink()
    assert write_held_out_proof(place, {"adapter": directory / FINAL}) is None
    assert not (place / PROOF).exists()


@pytest.mark.parametrize("name", [EPISODES, ATTEMPTS])
def test_runs_of_earlier_versions_cannot_be_proven(name: str, directory: Path) -> None:
    (directory / name).unlink()
    with raises("proof.records-missing", directory, name):
        compute_run_proof(directory)
    with raises("proof.file-missing", name):
        verify_proof(directory)


def test_a_run_that_an_earlier_version_began_cannot_be_proven(directory: Path) -> None:
    path = directory / EPISODES
    path.write_text("".join(each for each in path.read_text().splitlines(keepends=True) if '"step":2' in each))
    with raises("proof.records-missing", "step 1"):
        compute_run_proof(directory)


def test_a_resumed_run_forgets_lost_episodes(directory: Path) -> None:
    path = directory / EPISODES
    with path.open("a") as file:
        file.write('{"step": 3')  # killed while it wrote
    assert {each.step for each in read_episodes(path)} == {1, 2}
    truncate_episodes(path, 1)
    assert {each.step for each in read_episodes(path)} == {1}


def test_the_command_verifies_and_refuses(directory: Path, run: Run) -> None:
    good = run("verify", directory, "--json")
    assert (good.status, json.loads(good.out)["differences"]) == (0, [])
    assert run("verify", directory).status == 0
    tamper(directory / PROOF, ("cost", "gpu_hours"))
    bad = run("verify", directory, "--json")
    assert bad.status == 3
    (difference,) = json.loads(bad.out)["differences"]
    assert difference["claim"] == f"{PROOF}: cost.gpu_hours"
    assert difference["recorded"] > difference["computed"]
    assert "proof.differs" in run("verify", directory).err


def test_the_command_finds_the_proof_of_a_pipeline_run(evaluated: Path, tmp_path: Path, run: Run) -> None:
    pipeline = tmp_path / "pipeline"
    pipeline.mkdir()
    (pipeline / SPEC).write_text('{"pipeline": "train-agent"}')
    missing = run("verify", pipeline)
    assert (missing.status, "proof.missing" in missing.err) == (2, True)
    shutil.copytree(evaluated, pipeline / "steps" / "r1" / "evaluate-policy-2" / "evaluation")
    assert json.loads(run("verify", pipeline, "--json").out)["run"] == "r7"


def test_the_command_finds_the_proof_of_a_run_in_a_store(evaluated: Path, tmp_path: Path, run: Run) -> None:
    store = tmp_path / "store"
    Store(str(store)).publish(evaluated, "runs/r1/reports", "v1")
    assert json.loads(run("verify", "runs/r1", "--store", store, "--json").out)["differences"] == []
    assert "proof.store-missing" in run("verify", "runs/r1").err


@pytest.mark.parametrize(("text", "code"), [(None, "proof.missing"), ("{}", "proof.invalid")])
def test_a_directory_without_a_proof_is_reported(text: str | None, code: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / PROOF).write_text(text)
    with raises(code, tmp_path):
        verify_proof(tmp_path)


def test_the_page_lists_each_claim(directory: Path) -> None:
    page = (directory / "proof.html").read_text()
    for each in list_claims(read_proof(directory)):
        assert f'<th scope="row">{each.claim}</th>' in page


def test_the_schema_file_of_proofs_is_up_to_date() -> None:
    schema = files("gumshoe.evaluation.proof").joinpath("proof.schema.json").read_text(encoding="utf-8")
    assert schema == json.dumps(Proof.model_json_schema(mode="serialization"), indent=2) + "\n"


def test_the_command_verifies_the_best_adapter_of_a_sweep(
    evaluated: Path, recorded: Path, tmp_path: Path, run: Run
) -> None:
    """The entry that was evaluated last may be another one."""
    pipeline = tmp_path / "pipeline"
    best = pipeline / "steps" / "r1" / "choose" / "best"
    best.mkdir(parents=True)
    (pipeline / SPEC).write_text('{"pipeline": "sweep-agent"}')
    shutil.copyfile(recorded / FINAL / "adapter_model.safetensors", best / "adapter_model.safetensors")
    for number, name in enumerate(("evaluate-policy-2", "evaluate-policy-3")):
        place = pipeline / "steps" / "r1" / name / "evaluation"
        shutil.copytree(evaluated, place)
        if number:
            proof = json.loads((place / PROOF).read_bytes())
            proof["held_out"]["adapter"] = "of another entry"
            (place / PROOF).write_text(json.dumps(proof))
        os.utime(place / PROOF, (number, number))
    assert run("verify", pipeline).status == 0
    (best / "adapter_model.safetensors").write_bytes(b"weights of a third entry")
    missing = run("verify", pipeline)
    assert (missing.status, "proof.missing" in missing.err) == (2, True)
