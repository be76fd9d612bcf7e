"""The pipelines' parameter for canaries: checked before a run, and given to the evaluation of the new adapter only."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gumshoe.scenarios.canary_record import CANARIES_FILE
from gumshoe.synthesis.canaries import synthesize_canaries, write_canaries
from gumshoe_pipelines.graphs import compile_graph
from tests.errors import raises

REMOTE = "s3://bucket/canaries/canaries.json"


def check(arguments: dict[str, Any], *, is_local: bool = False) -> None:
    from gumshoe_pipelines.run_arguments import check_arguments

    check_arguments(arguments, is_local=is_local)


@pytest.mark.parametrize("threshold", ["max_exposure", "max_extracted"])
def test_thresholds_about_memorization_need_canaries(threshold: str) -> None:
    with raises("pipelines.thresholds-without-canaries", threshold):
        check({"thresholds": {threshold: 0.5}, "canaries": ""})
    check({"thresholds": {threshold: 0.5}, "canaries": REMOTE})
    check({"thresholds": {"min_gain": 0.5}, "canaries": ""})


def test_canaries_need_an_environment_of_mail() -> None:
    with raises("pipelines.canaries-need-mail", "documents"):
        check({"canaries": REMOTE, "environment": "documents"})
    check({"canaries": "", "environment": "documents"})


def test_a_record_is_read_before_a_local_run_and_must_be_readable_from_pods(tmp_path: Path) -> None:
    place = tmp_path / CANARIES_FILE
    with raises("scenarios.canaries-not-found", CANARIES_FILE):
        check({"canaries": str(place)}, is_local=True)
    write_canaries(synthesize_canaries(1, ["ann@example.com"], 2, 2, date(2024, 5, 1)), tmp_path)
    check({"canaries": str(place)}, is_local=True)
    with raises("pipelines.not-readable-from-pods", CANARIES_FILE):
        check({"canaries": str(place)})


@pytest.mark.parametrize("name", ["train-agent", "sweep-agent"])
def test_only_the_evaluation_of_the_new_adapter_measures_canaries(name: str) -> None:
    graph = compile_graph(name)
    assert graph.parameters["canaries"]["parameterType"] == "STRING"
    given = [
        task["inputs"]["parameters"].get("canaries", {})
        for component in graph.spec["components"].values()
        for task in component.get("dag", {}).get("tasks", {}).values()
        if task["componentRef"]["name"].startswith("comp-evaluate-policy")
    ]
    given += [
        task["inputs"]["parameters"].get("canaries", {})
        for task in graph.spec["root"]["dag"]["tasks"].values()
        if task["componentRef"]["name"].startswith("comp-evaluate-policy")
    ]
    assert sorted("componentInputParameter" in each for each in given) == [False, True]
