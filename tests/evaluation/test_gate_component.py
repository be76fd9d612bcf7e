"""Test the pipeline components that run the gate, and what Kubeflow shows of them."""

from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from tests.evaluation.predictions import answers, evaluation, result


def write_evaluation(place: Path, before: str, after: str) -> Path:
    """Write the evaluation of a base model and an adapter. `+` is a correct answer and `-` a wrong one."""
    place.mkdir()
    evaluation(result(answers(before, "base")), result(answers(after, "adapter"))).write(place)
    (place / "report.html").touch()
    return place


def artifacts(place: Path, **types: Any) -> dict[str, Any]:
    """Return output artifacts by name, as the launcher of Kubeflow gives them to a component."""
    return {name: kind(name=name, uri=str(place / name)) for name, kind in types.items()}


def outputs(place: Path, **more: Any) -> dict[str, Any]:
    from kfp import dsl

    place.mkdir()
    return artifacts(place, decision=dsl.Artifact, summary=dsl.Markdown, changes=dsl.ClassificationMetrics, **more)


def matrix(artifact: Any) -> list[list[int]]:
    """Return the rows that Kubeflow's page of a run shows."""
    shown = artifact.metadata["confusionMatrix"]
    assert [each["displayName"] for each in shown["annotationSpecs"]] == ["correct", "wrong"]
    return [each["row"] for each in shown["rows"]]


def test_the_gate_shows_how_answers_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kfp import dsl

    from gumshoe.evaluation.component import gate

    place = write_evaluation(tmp_path / "measured", "+" * 12 + "-" * 28, "+" * 9 + "-" * 3 + "+" * 20 + "-" * 8)
    written = outputs(tmp_path / "outputs")
    given = dsl.Artifact(name="evaluation", uri=str(place))
    passed = gate.python_func(evaluation=given, thresholds={}, store=str(tmp_path / "store"), run="r1", **written)
    assert passed
    assert matrix(written["changes"]) == [[9, 3], [20, 8]]
    assert Path(written["summary"].path).read_text().startswith("# Passed")
    assert written["decision"].metadata["why"] in capsys.readouterr().out


def test_the_sweep_shows_how_answers_of_the_chosen_adapter_changed(tmp_path: Path) -> None:
    from kfp import dsl

    from gumshoe.evaluation.component import choose

    before = "+" * 20 + "-" * 20
    places = [
        write_evaluation(tmp_path / "good", before, "+" * 38 + "--"),
        write_evaluation(tmp_path / "bad", before, "-" * 40),
    ]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    written = outputs(tmp_path / "outputs", best=dsl.Model)
    choose.python_func(
        evaluations=[dsl.Artifact(uri=str(each)) for each in places],
        adapters=[dsl.Model(uri=str(adapter)) for _ in places],
        thresholds={},
        store=str(tmp_path / "store"),
        run="r1",
        **written,
    )
    assert matrix(written["changes"]) == [[20, 0], [18, 2]]
    report = Store(str(tmp_path / "store")).manifest(written["decision"].metadata["report"])
    assert (report.kind, report.settings["passed"]) == ("runs/r1/reports", True)
