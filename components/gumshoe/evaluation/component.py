"""The pipeline's steps that measure policies, and that say whether one is really better."""

from kfp import dsl


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def evaluate_policy(
    index: dsl.Input[dsl.Dataset],
    scenarios: dsl.Input[dsl.Dataset],
    base_model: str,
    judge: str,
    limits: dict,
    gpus: int,  # noqa: ARG001 - of the pod
    code: str,
    evaluation: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    adapter: dsl.Input[dsl.Model] = None,
    current: dsl.Input[dsl.Model] = None,
    baseline: dsl.Input[dsl.Artifact] = None,
    choice: dict = {},  # noqa: B006 - a default of Kubeflow's
) -> float:
    """Measure the base model, and the adapters that are given beside it, on the test split; the last one's accuracy.

    Args:
        index: Of mail, or of documents.
        scenarios: A directory with `scenarios.jsonl`.
        base_model: `tiny`, a model's directory, or its name on the hub.
        judge: Says which answers are right, as `gumshoe evaluate --judge`.
        limits: Of an episode: max_turns, max_tokens, max_context.
        gpus: How many the step has.
        code: A hash of the code, so that what other code made is not taken from the cache.
        evaluation: What `gumshoe evaluate` writes.
        metrics: The first of its numbers.
        report: Every episode.
        adapter: Measured where it is given.
        current: The adapter in service, measured too; an empty one is none.
        baseline: An evaluation of the base model, of which nothing is asked again.
        choice: How one of several samples answers a question: samples, choose, choose_by, temperature; empty for none.
    """
    import json
    import shutil
    from pathlib import Path

    from gumshoe.evaluation.evaluation_step import measure_policies

    place = Path(evaluation.path)
    if baseline is not None:
        shutil.copytree(baseline.path, place, dirs_exist_ok=True)
    adapters = {"current": current, "adapter": adapter}
    given = {name: Path(each.path) for name, each in adapters.items() if each is not None}
    asked, page = Path(scenarios.path), Path(report.path)
    result = measure_policies(Path(index.path), asked, base_model, given, judge, limits, place, page, choice)
    numbers = {name: estimate.value for name, estimate in result.metrics.items()}
    for name, value in numbers.items():
        metrics.log_metric(name, value)
    Path(metrics.path).write_text(json.dumps(numbers), encoding="utf-8")  # without a file there is nothing to cache
    evaluation.metadata.update({"policy": result.name, "questions": len(result.correct_map), "code": code})
    return result.metrics["accuracy"].value


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def gate(
    evaluation: dsl.Input[dsl.Artifact],
    thresholds: dict,
    store: str,
    run: str,
    decision: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> bool:
    """Say whether the adapter is really better than the one in service, or the base model, and why; and keep that.

    Args:
        evaluation: One of both.
        thresholds: As `gumshoe gate` has them; those that are not named are its defaults.
        store: The URI of the project's artifacts.
        run: The run's id.
        decision: A file, JSON.
        summary: The same to read.
    """
    import shutil
    from pathlib import Path

    from gumshoe.evaluation.evaluation_step import DECISION, SUMMARY, decide, keep
    from gumshoe.evaluation.gate import GateSettings

    place = Path(evaluation.path)
    found = decide(place, GateSettings.of(thresholds))
    shutil.copyfile(place / DECISION, decision.path)
    shutil.copyfile(place / SUMMARY, summary.path)
    decision.metadata.update({"passed": found.passed, "why": found.why, "report": keep(place, found, store, run)})
    print(found.why)
    return found.passed


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def choose(
    evaluations: dsl.Input[list[dsl.Artifact]],
    adapters: dsl.Input[list[dsl.Model]],
    thresholds: dict,
    store: str,
    run: str,
    best: dsl.Output[dsl.Model],
    decision: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> bool:
    """Choose the adapter that answers most of those that the gate lets pass; whether there is one.

    Args:
        evaluations: One of each adapter.
        adapters: In the same order.
        thresholds: As `gumshoe gate` has them; stricter for each, as there are more of them.
        store: The URI of the project's artifacts.
        run: The run's id.
        best: The one that was chosen; where none passes, the best of all.
        decision: What the gate said of it, JSON.
        summary: All of them, to read.
    """
    import shutil
    from pathlib import Path

    from gumshoe.evaluation.evaluation_step import DECISION, chosen, keep
    from gumshoe.evaluation.gate import GateSettings

    places = [Path(each.path) for each in evaluations]
    decisions, place, text = chosen(places, GateSettings.of(thresholds))
    shutil.copyfile(places[place] / DECISION, decision.path)
    Path(summary.path).write_text(text, encoding="utf-8")
    shutil.copytree(adapters[place].path, best.path, dirs_exist_ok=True)
    best.metadata.update(adapters[place].metadata)
    last = [*(each for each in range(len(places)) if each != place), place]  # what is told of the run is of the best
    for each in last:
        keep(places[each], decisions[each], store, run)
        print(decisions[each].why)
    return decisions[place].passed
