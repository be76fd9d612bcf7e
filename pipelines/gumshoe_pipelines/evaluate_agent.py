"""Evaluate a published adapter against its base model."""

from dataclasses import dataclass
from typing import Annotated

from kfp import dsl

from gumshoe.artifacts.component import fetch_adapter
from gumshoe_pipelines.common_steps import check_agent_code, create_notification, evaluate, ingest_and_split, plan
from gumshoe_pipelines.parameters import RunParameters, pipeline


@dataclass(frozen=True, kw_only=True)
class EvaluateAgentParameters(RunParameters):
    """Parameters of `evaluate-agent`."""

    adapter: Annotated[str, "Version of a published adapter to evaluate, or `latest`."] = "latest"


@pipeline("evaluate-agent", EvaluateAgentParameters)
def evaluate_agent(given: EvaluateAgentParameters) -> None:
    """Evaluate a published adapter against its base model."""
    where = given.placement
    with dsl.ExitHandler(create_notification(given), name="run"):
        fetched = where.on_cpu(fetch_adapter(store=given.store, version=given.adapter))
        planned = plan(given)
        # With `current`, no test question is one that the adapter has seen.
        inputs = ingest_and_split(given, planned, current=fetched.outputs["Output"])
        inputs = {**inputs, "agent_code": check_agent_code(given, planned)}
        evaluate(given, planned.evaluation, hours=6, **inputs, adapter=fetched.outputs["adapter"])
