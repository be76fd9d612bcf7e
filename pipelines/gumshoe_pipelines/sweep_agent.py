"""Train with several settings, and publish the best adapter that passes.

Its last step is no exit handler: Kubeflow does not take loops within one.
"""

from typing import Any

from kfp import dsl

from gumshoe.evaluation.component import choose, evaluate_policy
from gumshoe.training.component import train_grpo
from gumshoe_pipelines.placement import TRAINER, WORKER, Placement
from gumshoe_pipelines.prepared import prepared, published_if_passed

AT_ONCE = 4


@dsl.pipeline(name="sweep-agent", description="Train with several settings, and publish the best that passes.")
def sweep_agent(
    mail: list,
    scenarios: str,
    store: str,
    run: str,
    sweep: list,
    base_model: str = "Qwen/Qwen2.5-7B-Instruct",
    config: str = "",
    limits: dict = {},  # noqa: B006 - a default of Kubeflow's
    judge: str = "heuristic",
    thresholds: dict = {},  # noqa: B006
    seed: int = 1,
    gpus: int = 1,
    node_selector: dict = {},  # noqa: B006
    tolerations: list = [],  # noqa: B006
    worker_image: str = WORKER,
    trainer_image: str = TRAINER,
    code: str = "",
) -> None:
    """Train agents.

    Args:
        mail: Sources of mail, as `gumshoe mail index` takes them.
        scenarios: Questions with known answers, as `gumshoe scenarios load` takes them.
        store: The URI of the project's artifacts, such as s3://bucket/project.
        run: The run's id. Submitted again with the same one, a run takes up where it stopped.
        sweep: What differs, such as [{name: slow, settings: {optimizer.learning_rate: 1e-6}}].
        base_model: `tiny`, a model's directory, or its name on the hub.
        config: Settings of training: a name of those that come with Gumshoe, or a URI; empty for the defaults.
        limits: Of an episode in evaluations: max_turns, max_tokens, max_context.
        judge: Says in evaluations which answers are right.
        thresholds: Of the gate; those that are not named are its defaults.
        seed: Decides which scenarios go into which split, where they do not say.
        gpus: Of a step that needs them.
        node_selector: Labels of the nodes that have them.
        tolerations: Of the same steps.
        worker_image: Of the steps without a GPU.
        trainer_image: Of those with one.
        code: A hash of the code; cached steps of other code are run again.
    """
    where: Any = Placement(worker_image, trainer_image, gpus, node_selector, tolerations)
    asked = {**prepared(where, mail, scenarios, seed, code), "base_model": base_model, "gpus": gpus}
    measuring = {**asked, "judge": judge, "limits": limits, "code": code}
    before = where.on_gpu(evaluate_policy(**measuring), hours=6, cached=True).set_display_name("baseline")
    with dsl.ParallelFor(sweep, parallelism=AT_ONCE, name="each") as each:
        trained = where.on_gpu(
            train_grpo(**asked, config=config, settings=each.settings, checkpoints=f"{store}/runs/{run}/{each.name}"),
            hours=48,
        )
        after = where.on_gpu(
            evaluate_policy(**measuring, adapter=trained.outputs["adapter"], baseline=before.outputs["evaluation"]),
            hours=6,
        )
    decided = where.on_cpu(
        choose(
            evaluations=dsl.Collected(after.outputs["evaluation"]),
            adapters=dsl.Collected(trained.outputs["adapter"]),
            thresholds=thresholds,
            store=store,
            run=run,
        ),
        hours=0.5,
    )
    published_if_passed(where, decided, decided.outputs["best"], store, run)
