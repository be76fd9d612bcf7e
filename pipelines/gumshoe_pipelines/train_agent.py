"""Train an agent and publish it: ingest, split, evaluate, train, evaluate again, decide, publish.

With demonstrations, a warm start precedes the training; without them, its step ends immediately.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from kfp import dsl

from gumshoe.artifacts.component import fetch_adapter
from gumshoe.evaluation.component import gate
from gumshoe.training.component import warm_start
from gumshoe_pipelines.common_steps import (
    check_agent_code,
    check_settings,
    create_notification,
    evaluate,
    ingest_and_split,
    plan,
    publish_if_gate_passes,
)
from gumshoe_pipelines.grpo_step import train_with_grpo
from gumshoe_pipelines.parameters import TrainingParameters, pipeline
from gumshoe_pipelines.placement import add_agent_keys


@dataclass(frozen=True, kw_only=True)
class TrainAgentParameters(TrainingParameters):
    """Parameters of `train-agent`."""

    settings: Annotated[
        dict[str, Any], "Training settings that override `config`, e.g. {optimizer.max_steps: 200}."
    ] = field(default_factory=dict)
    demonstrations: Annotated[
        str,
        "Episodes for a supervised warm start: a URI of episodes from `gumshoe rollout`, `gold` to make them from the "
        "scenarios and their sources, or empty for none.",
    ] = ""
    against: Annotated[
        str,
        "What the new adapter must beat: `base` (its base model), `latest` (the newest published adapter that was not "
        "rolled back as a canary; without one, the base model), or the version of a published adapter.",
    ] = "base"
    feedback: Annotated[
        dict[str, Any],
        "Add scenarios from the feedback of users in `store`, e.g. {since: 90d, max_share: 0.1, redact: [pii]}. The "
        "options are those of `gumshoe scenarios from-feedback`. Empty for none.",
    ] = field(default_factory=dict)


@pipeline("train-agent", TrainAgentParameters)
def train_agent(given: TrainAgentParameters) -> None:
    """Train a search agent, and publish it if it beats its base model or the adapter in service."""
    where = given.placement
    with dsl.ExitHandler(create_notification(given), name="run"):
        planned = plan(given, given.nodes)
        run, evaluation = planned.run, planned.evaluation
        current = where.on_cpu(fetch_adapter(store=given.store, version=given.against, run=run)).outputs
        inputs = ingest_and_split(given, planned, current=current["Output"], feedback=given.feedback)
        agent = check_agent_code(given, planned, config=given.config, settings=given.settings)
        checked = check_settings(
            given,
            **inputs,
            settings=given.settings,
            demonstrations=given.demonstrations,
            current=current["adapter"],
        )
        before = evaluate(
            given, evaluation, hours=6, cached=True, **inputs, agent_code=agent, state=checked.outputs["baseline"]
        )
        before.set_display_name("baseline")
        learning = {**inputs, "base_model": given.base_model, "config": given.config, "settings": given.settings}
        warm = warm_start(
            **learning,
            demonstrations=given.demonstrations,
            judge=given.judge,
            state=checked.outputs["training"],
            code=given.code,
            store=given.store,
        )
        planned.whole_node.on_gpu(add_agent_keys(warm), hours=12, cached=True).after(before)
        checkpoints = f"{given.store}/runs/{run}"
        trained = train_with_grpo(
            given, planned.training, **learning, checkpoints=checkpoints, start=warm.outputs["adapter"]
        )
        adapter = trained.outputs["adapter"]
        adapters = {"adapter": adapter, "current": current["adapter"]}
        compared = {**adapters, "baseline": before.outputs["evaluation"], "canaries": given.canaries}
        after = evaluate(given, evaluation, hours=12, **inputs, **compared)
        decided = gate(evaluation=after.outputs["evaluation"], thresholds=given.thresholds, store=given.store, run=run)
        where.on_cpu(decided, hours=0.5)
        publish_if_gate_passes(given, run, decided, adapter)
