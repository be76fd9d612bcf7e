"""Add the steps that several pipelines share."""

from typing import Any

from kfp import dsl

from gumshoe.artifacts.component import look_at_sources, publish_adapter
from gumshoe.cluster.component import deploy_agent
from gumshoe.environments.component import ingest
from gumshoe.scenarios.component import load_scenarios
from gumshoe_pipelines.placement import Placement

EMBEDDING = "intfloat/e5-base-v2"
"""Default embedding model for documents."""


def ingest_and_split(
    where: Placement,
    sources: Any,
    environment: Any,
    embedding: Any,
    scenarios: Any,
    seed: Any,
    code: Any,
    current: Any = None,
) -> dict[str, Any]:
    """Add the steps that index the sources, and check and split the questions.

    Returns the inputs `index` and `scenarios` of later steps. `current` is an adapter that will be evaluated too.
    """
    now = where.on_cpu(look_at_sources(sources=sources, scenarios=scenarios)).outputs
    made = ingest(sources=sources, environment=environment, embedding=embedding, state=now["sources"], code=code)
    index = where.on_cpu(made, hours=12, cached=True).outputs["index"]
    extra = {} if current is None else {"current": current}
    loaded = load_scenarios(source=scenarios, index=index, seed=seed, state=now["scenarios"], code=code, **extra)
    where.on_cpu(loaded, cached=True)
    return {"index": index, "scenarios": loaded.outputs["scenarios"]}


def publish_if_gate_passes(
    where: Placement, decided: Any, adapter: Any, store: Any, run: Any, deploy: Any, deployment: Any
) -> None:
    """Add the last steps: publish the adapter if it passed the gate, and deploy it if requested."""
    with dsl.If(decided.outputs["Output"] == True, name="passed"):  # noqa: E712 - Kubeflow compiles it
        published = publish_adapter(
            adapter=adapter,
            decision=decided.outputs["decision"],
            store=store,
            version=run,
            image=where.trainer_image,
        )
        where.on_cpu(published)
        served = deploy_agent(published=published.outputs["Output"], store=store, how=deploy, target=deployment)
        where.on_cpu(served, hours=2.5)
