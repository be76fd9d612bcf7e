"""Evaluate a published adapter against its base model."""

from dataclasses import dataclass
from typing import Annotated

from kfp import dsl

from gumshoe.artifacts.component import fetch_adapter
from gumshoe_pipelines.common_steps import create_notification, evaluate, ingest_and_split, plan
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
        evaluation = plan(given).evaluation
        evaluate(given, evaluation, hours=6, **ingest_and_split(given), adapter=fetched.outputs["adapter"])
