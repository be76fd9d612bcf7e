"""Files: `metrics.json` and its schema, predictions and tables."""

import csv
import json
from importlib.resources import files
from pathlib import Path

from gumshoe.environments.base import EpisodeState
from gumshoe.evaluation.predictions import Prediction, read_predictions, write_predictions, write_table
from gumshoe.evaluation.results import EvaluationResult, read_result
from gumshoe.rewards.scoring import JudgedTrajectory
from gumshoe.rollouts.trajectory import Span, TokenUsage, Trajectory
from gumshoe.scenarios.scenario import ScenarioSet
from tests.errors import raises
from tests.evaluation.predictions import answers, evaluation, prediction, result
from tests.scenarios.questions import scenario

SCHEMA = files("gumshoe.evaluation").joinpath("metrics.schema.json")


def test_the_schema_file_is_up_to_date() -> None:
    text = json.dumps(EvaluationResult.model_json_schema(mode="serialization"), indent=2) + "\n"
    assert SCHEMA.read_text(encoding="utf-8") == text, "write model_json_schema() to metrics.schema.json"


def test_the_schema_describes_fields() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert schema["properties"]["format"]["const"] == "gumshoe.metrics/1"
    assert "hallucinated_sources" in schema["$defs"]["PolicyResult"]["properties"]["metrics"]["description"]
    assert "description" in schema["$defs"]["PolicyResult"]["properties"]["control_reward_map"]


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = evaluation(result(answers("+-", "a")), result(answers("++", "b")))
    written.write(tmp_path)
    found, policy = read_result(f"{tmp_path}#b")
    assert (found, policy.name) == (written, "b")
    other = json.loads((tmp_path / "metrics.json").read_text()) | {"format": "gumshoe.metrics/2"}
    (tmp_path / "metrics.json").write_text(json.dumps(other))
    with raises("evaluation.invalid-metrics-file", tmp_path / "metrics.json", "format"):
        read_result(f"{tmp_path}#b")


def test_predictions_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = [prediction(1), prediction(2, correct=False, answer='Says "no";\n\u2028 \U0001f600')]
    write_predictions(tmp_path / "p.jsonl", written)
    assert read_predictions(tmp_path / "p.jsonl") == written
    with (tmp_path / "p.jsonl").open("a") as file:
        file.write('{"policy": 3}\n')
    with raises("evaluation.invalid-prediction", f"{tmp_path / 'p.jsonl'}:3: "):
        read_predictions(tmp_path / "p.jsonl")


def test_the_table_has_a_row_per_question_and_no_formulas(tmp_path: Path) -> None:
    written = [prediction(1, policy="a", answer="=HYPERLINK(1)"), prediction(2, policy="a", correct=False)]
    written += [prediction(1, policy="b", sample=n, correct=n == 0, reward=float(n), question="x") for n in range(2)]
    write_table(tmp_path / "p.csv", written)
    with (tmp_path / "p.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["scenario"] for row in rows] == ["q1", "q2"]
    assert rows[0]["a: answer"] == "'=HYPERLINK(1)"
    assert (rows[0]["b: correct"], rows[0]["b: reward"]) == ("0.5", "0.5")
    assert (rows[1]["a: correct"], rows[1]["b: correct"]) == ("0", "")


def test_a_prediction_is_created_from_a_trajectory() -> None:
    about = scenario(1, message_ids=["<1@example.com>", "<2@example.com>"], needs_all=True)
    record = EpisodeState(
        deeds=[["invalid id"], ["answered"]],
        found=["<1@example.com>", "<2@example.com>"],
        read=["<1@example.com>"],
        invalid_ids=3,
        answer="A",
        sources=["<1@example.com>", "<8@example.com>", "<9@example.com>"],
        right_sources=["<1@example.com>"],
    )
    episode = Trajectory("q1", 2, "v", "answer", "", [Span("prompt", "")], record, 2, 1.5, 0.25, TokenUsage(70, 7), 3)
    verdicts = [
        ("heuristic", JudgedTrajectory("q1", 2, "A", True, "so", "words")),
        ("exact", JudgedTrajectory("q1", 2, "A", False, "no")),
    ]
    found = Prediction.from_trajectory("p", about, episode, verdicts, 0.7)
    assert (found.found, found.read, found.right_source) == (True, False, False)
    assert found.hallucinated_sources == 2  # one of the three invalid ids was read, not given
    assert (found.prompt_tokens, found.sampled_tokens, found.seconds, found.tries) == (70, 7, 1.75, 3)
    assert found.correct
    assert [(each.judge, each.correct, each.rule) for each in found.verdicts] == [
        ("heuristic", True, "words"),
        ("exact", False, ""),
    ]
    assert ScenarioSet.of([about]).to_record().ids == (found.scenario,)
