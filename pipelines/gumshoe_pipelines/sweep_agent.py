"""Train with several settings, and publish the best adapter that passes the gate.

It has no exit handler, because Kubeflow does not support loops inside one.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from kfp import dsl

from gumshoe.evaluation.component import choose
from gumshoe_pipelines.common_steps import (
    check_agent_code,
    check_settings,
    evaluate,
    ingest_and_split,
    plan,
    publish_if_gate_passes,
)
from gumshoe_pipelines.grpo_step import train_with_grpo
from gumshoe_pipelines.parameters import TrainingParameters, pipeline

AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class SweepAgentParameters(TrainingParameters):
    """Parameters of `sweep-agent`."""

    sweep: Annotated[list[Any], "Settings to compare, e.g. [{name: slow, settings: {optimizer.learning_rate: 1e-6}}]."]


@pipeline("sweep-agent", SweepAgentParameters)
def sweep_agent(given: SweepAgentParameters) -> None:
    """Train with several settings, and publish the best adapter that passes."""
    where = given.placement
    planned = plan(given, given.nodes)
    inputs = ingest_and_split(given, planned)
    agent = check_agent_code(given, planned, config=given.config, sweep=given.sweep)
    checked = check_settings(given, **inputs, sweep=given.sweep)
    before = evaluate(
        given, planned.evaluation, hours=6, cached=True, **inputs, agent_code=agent, state=checked.outputs["baseline"]
    )
    before.set_display_name("baseline")
    learning = {**inputs, "base_model": given.base_model, "config": given.config}
    with dsl.ParallelFor(given.sweep, parallelism=AT_ONCE, name="each") as each:
        own = plan(given, given.nodes)  # `kfp.local` passes no output of a step from outside into a loop
        trained = train_with_grpo(
            given,
            own.training,
            **learning,
            settings=each.settings,
            checkpoints=f"{given.store}/runs/{own.run}",
            entry=each.__getattr__("name"),  # `each.name` is the name of the placeholder
        )
        compared = {"adapter": trained.outputs["adapter"], "baseline": before.outputs["evaluation"]}
        compared["canaries"] = given.canaries
        after = evaluate(given, own.evaluation, hours=6, **inputs, **compared)
    decided = where.on_cpu(
        choose(
            evaluations=dsl.Collected(after.outputs["evaluation"]),
            adapters=dsl.Collected(trained.outputs["adapter"]),
            thresholds=given.thresholds,
            store=given.store,
            run=planned.run,
        ),
        hours=0.5,
    )
    publish_if_gate_passes(given, planned.run, decided, decided.outputs["best"])
