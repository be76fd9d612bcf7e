"""Pipeline components that evaluate policies and run the gate."""

from kfp import dsl


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def evaluate_policy(
    index: dsl.Input[dsl.Dataset],
    scenarios: dsl.Input[dsl.Dataset],
    base_model: str,
    judge: str,
    limits: dict,
    code: str,
    evaluation: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    adapter: dsl.Input[dsl.Model] = None,
    current: dsl.Input[dsl.Model] = None,
    baseline: dsl.Input[dsl.Artifact] = None,
    choice: dict = {},  # noqa: B006 - Kubeflow requires a literal
    canaries: str = "",
    agent: str = "",
    agent_code: str = "",  # noqa: ARG001 - part of the cache key
    state: str = "",  # noqa: ARG001
) -> float:
    """Evaluate the base model and the given adapters on the test split, and return the accuracy of the last one.

    Args:
        index: Index of mail or documents.
        scenarios: Directory with `scenarios.jsonl`.
        base_model: `tiny`, the directory of a model, or its name on the hub.
        judge: Judge of the answers, e.g. `heuristic` (see `gumshoe evaluate --judge`).
        limits: Limits of each episode: max_turns, max_tokens, max_context, those of the adapter's training by default;
            and its chat settings and environment: chat, environment.
        code: Hash of the code. If it changes, the step is not taken from the cache.
        evaluation: Directory that `gumshoe evaluate` writes.
        metrics: Metrics of the last policy.
        report: Report of every episode.
        adapter: Adapter to evaluate.
        current: Adapter in service, to evaluate too; an empty directory for none.
        baseline: Evaluation of the base model, to reuse its episodes.
        choice: How one of several samples is chosen: samples, choose, choose_by, temperature; empty for one sample.
        canaries: Path or URI of the record of canaries in the training mail; empty to measure no memorization.
        agent: Agent that runs the episodes; empty for Gumshoe's own loop.
        agent_code: Digest of the agent's code. If it changes, the step is not taken from the cache.
        state: Digest of base model and environment. If it changes, the step is not taken from the cache.
    """
    import json
    import shutil
    from pathlib import Path

    from gumshoe.evaluation.evaluation_step import evaluate_policies

    place = Path(evaluation.path)
    if baseline is not None:
        shutil.copytree(baseline.path, place, dirs_exist_ok=True)
    adapters = {"current": current, "adapter": adapter}
    given = {name: Path(each.path) for name, each in adapters.items() if each is not None}
    questions, page = Path(scenarios.path), Path(report.path)
    result = evaluate_policies(
        Path(index.path), questions, base_model, given, judge, limits, place, page, choice, canaries, agent
    )
    numbers = {name: estimate.value for name, estimate in result.metrics.items()}
    if result.memorised is not None:
        numbers |= {"exposure": result.memorised.exposure.value, "extracted": result.memorised.extracted.value}
    for name, value in numbers.items():
        metrics.log_metric(name, value)
    Path(metrics.path).write_text(
        json.dumps(numbers), encoding="utf-8"
    )  # Kubeflow caches a step only if its outputs are files
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
    changes: dsl.Output[dsl.ClassificationMetrics],
) -> bool:
    """Decide if the adapter is significantly better than the one in service, or the base model. Publish the report.

    Args:
        evaluation: Evaluation of both.
        thresholds: Thresholds of `gumshoe gate` by name, e.g. {min_gain: 0.05}; the others have their defaults.
        store: URI of the artifact store.
        run: Id of the run.
        decision: The decision, as JSON.
        summary: The decision, as Markdown.
        changes: Answers that are correct and wrong, before (rows) and after (columns).
    """
    import json
    import shutil
    from pathlib import Path

    from gumshoe.evaluation.evaluation_step import DECISION, SUMMARY, count_changes, decide_and_write, publish_report
    from gumshoe.evaluation.gate import GateSettings

    place = Path(evaluation.path)
    found = decide_and_write(place, GateSettings.from_mapping(thresholds))
    shutil.copyfile(place / DECISION, decision.path)
    shutil.copyfile(place / SUMMARY, summary.path)
    table = count_changes(place, found)
    changes.log_confusion_matrix(["correct", "wrong"], table)
    Path(changes.path).write_text(json.dumps(table), encoding="utf-8")  # Kubeflow uploads a file for each output
    decision.metadata.update(
        {"passed": found.passed, "why": found.why, "report": publish_report(place, found, store, run)}
    )
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
    changes: dsl.Output[dsl.ClassificationMetrics],
) -> bool:
    """Choose the most accurate adapter among those that pass the gate. Return True if one passes.

    Args:
        evaluations: One evaluation per adapter.
        adapters: The adapters, in the same order.
        thresholds: Thresholds of `gumshoe gate` by name; levels are stricter with more adapters.
        store: URI of the artifact store.
        run: Id of the run.
        best: The chosen adapter, or the best of all if none passes.
        decision: Decision on the chosen adapter, as JSON.
        summary: All decisions, as Markdown.
        changes: Answers that are correct and wrong, before (rows) and after (columns), of the chosen adapter.
    """
    import json
    import shutil
    from pathlib import Path

    from gumshoe.evaluation.evaluation_step import DECISION, choose_best, count_changes, publish_report
    from gumshoe.evaluation.gate import GateSettings

    places = [Path(each.path) for each in evaluations]
    decisions, place, text = choose_best(places, GateSettings.from_mapping(thresholds))
    shutil.copyfile(places[place] / DECISION, decision.path)
    Path(summary.path).write_text(text, encoding="utf-8")
    table = count_changes(places[place], decisions[place])
    changes.log_confusion_matrix(["correct", "wrong"], table)
    Path(changes.path).write_text(json.dumps(table), encoding="utf-8")  # Kubeflow uploads a file for each output
    shutil.copytree(adapters[place].path, best.path, dirs_exist_ok=True)
    best.metadata.update(adapters[place].metadata)
    last = [
        *(each for each in range(len(places)) if each != place),
        place,
    ]  # publish the best one last: the latest report is that of the run
    for each in last:
        report = publish_report(places[each], decisions[each], store, run)
        print(decisions[each].why)
    found = decisions[place]
    decision.metadata.update({"passed": found.passed, "why": found.why, "report": report})
    return found.passed
