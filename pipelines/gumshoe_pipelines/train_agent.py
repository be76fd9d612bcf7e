"""From mail to a published adapter: ingest, check and split, measure, train, measure again, decide, publish.

With demonstrations there is a warm start before the training; without them its step ends at once.
"""

from typing import Any

from kfp import dsl

from gumshoe.evaluation.component import evaluate_policy, gate
from gumshoe.operations.component import notify
from gumshoe.training.component import train_grpo, warm_start
from gumshoe_pipelines.placement import TRAINER, WORKER, Placement
from gumshoe_pipelines.prepared import prepared, published_if_passed


@dsl.pipeline(name="train-agent", description="Train a search agent on somebody's mail, and publish what is better.")
def train_agent(
    mail: list,
    scenarios: str,
    store: str,
    run: str,
    base_model: str = "Qwen/Qwen2.5-7B-Instruct",
    config: str = "",
    settings: dict = {},  # noqa: B006 - a default of Kubeflow's
    demonstrations: str = "",
    limits: dict = {},  # noqa: B006
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
    """Train an agent.

    Args:
        mail: Sources of mail, as `gumshoe mail index` takes them.
        scenarios: Questions with known answers, as `gumshoe scenarios load` takes them.
        store: The URI of the project's artifacts, such as s3://bucket/project.
        run: The run's id. Submitted again with the same one, a run takes up where it stopped.
        base_model: `tiny`, a model's directory, or its name on the hub.
        config: Settings of training: a name of those that come with Gumshoe, or a URI; empty for the defaults.
        settings: More of them, by dotted name.
        demonstrations: The URI of episodes, as `gumshoe rollout` writes them, whose right ones are learned from first.
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
    told = where.on_cpu(notify(store=store, run=run), hours=0.25)
    with dsl.ExitHandler(told, name="run"):
        asked = {**prepared(where, mail, scenarios, seed, code), "base_model": base_model, "gpus": gpus}
        measuring = {**asked, "judge": judge, "limits": limits, "code": code}
        before = where.on_gpu(evaluate_policy(**measuring), hours=6, cached=True).set_display_name("baseline")
        learning = {**asked, "config": config, "settings": settings}
        warm = warm_start(**learning, demonstrations=demonstrations, judge=judge, code=code)
        where.on_gpu(warm, hours=12, cached=True).after(before)
        begun = warm.outputs["adapter"]
        trained = where.on_gpu(train_grpo(**learning, checkpoints=f"{store}/runs/{run}", start=begun), hours=48)
        adapter = trained.outputs["adapter"]
        after = where.on_gpu(
            evaluate_policy(**measuring, adapter=adapter, baseline=before.outputs["evaluation"]), hours=6
        )
        decided = where.on_cpu(
            gate(evaluation=after.outputs["evaluation"], thresholds=thresholds, store=store, run=run), hours=0.5
        )
        published_if_passed(where, decided, adapter, store, run)
