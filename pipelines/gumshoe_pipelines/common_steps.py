"""Add the steps that several pipelines share."""

from dataclasses import dataclass, replace
from typing import Any

from kfp import dsl, kubernetes

from gumshoe.artifacts.component import publish_adapter
from gumshoe.cluster.component import deploy_agent, notify, watch_canary
from gumshoe.environments.component import ingest
from gumshoe.evaluation.component import evaluate_policy
from gumshoe.mail.imap_account import PASSWORD, TOKEN
from gumshoe.scenarios.component import load_scenarios, look_at_sources
from gumshoe_pipelines.agent_step import check_agent
from gumshoe_pipelines.parameters import RunParameters, TrainingParameters
from gumshoe_pipelines.placement import (
    MODEL_SECRETS,
    NO_SECRETS,
    NOTIFY_SECRETS,
    Placement,
    add_agent_keys,
    plan_run,
)
from gumshoe_pipelines.training_check_step import check_training

_WATCH_HOURS = 26  # the longest watch, and the change after it
_IMAP_SECRET = "gumshoe-imap"  # noqa: S105 - a name


def create_notification(given: RunParameters) -> Any:
    """Create the step that runs when all others have ended, for `dsl.ExitHandler`."""
    task = notify(store=given.store, run=given.run, job=dsl.PIPELINE_JOB_ID_PLACEHOLDER)
    return given.placement.on_cpu(task, hours=0.25, secrets=NOTIFY_SECRETS)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The outputs of the step that plans a run."""

    run: Any
    """ID of the run."""
    evaluation: Placement
    whole_node: Placement
    """For steps that use all GPUs of a node."""
    training: Placement
    checking: Placement
    """For the step that checks the agent, in an image that has it."""
    indexing: Placement
    """For the step that builds the index, in an image that can embed if that is asked for."""


def plan(given: RunParameters, nodes: Any = 1) -> PlannedRun:
    """Add the step that plans the run."""
    where = given.placement
    task = plan_run(
        run=given.run,
        job=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        nodes=nodes,
        gpus=given.gpus,
        gpu_resource=given.gpu_resource,
        cpus_per_gpu=given.cpus_per_gpu,
        memory_per_gpu=given.memory_per_gpu,
        worker_cpus=given.worker_cpus,
        worker_memory=given.worker_memory,
        node_selector=given.node_selector,
        tolerations=given.tolerations,
        agent=given.agent,
        environment=given.environment,
        embedding=given.embedding,
        index=given.index,
        worker_image=given.worker_image,
        trainer_image=given.trainer_image,
    )
    found = where.on_cpu(task, hours=0.25, secrets=NO_SECRETS).outputs
    own = {name: found[name] for name in ("node_selector", "tolerations")}
    return PlannedRun(
        found["run"],
        where.with_pod(found, "measuring"),
        where.with_pod(found, "whole"),
        where.with_pod(found, "training", **own),
        replace(where, worker_image=found["agent_image"]),
        replace(where, worker_image=found["ingest_image"]),
    )


def check_agent_code(given: RunParameters, planned: PlannedRun, **training: Any) -> Any:
    """Add the step that checks the agent, and return the digest of its code. `training` are its training settings."""
    task = add_agent_keys(check_agent(agent=given.agent, **training))
    return planned.checking.on_cpu(task, hours=0.25, secrets=MODEL_SECRETS).output


def check_settings(given: TrainingParameters, **inputs: Any) -> Any:
    """Add the step that checks the training settings, and return it. Its outputs are digests for the cache."""
    task = check_training(
        **inputs,
        base_model=given.base_model,
        config=given.config,
        limits=given.limits,
        nodes=given.nodes,
        gpus=given.gpus,
        job=given.job,
        agent=given.agent,
    )
    where = replace(given.placement, worker_image=given.trainer_image)  # it has custom environments and base models
    return where.on_cpu(add_agent_keys(task), secrets=MODEL_SECRETS)


def ingest_and_split(
    given: RunParameters, planned: PlannedRun, *, current: Any = "", feedback: Any = None
) -> dict[str, Any]:
    """Add the steps that index the sources, and check and split the questions.

    Returns the inputs `index` and `scenarios` of later steps. `current` is the version of a published adapter that will
    be evaluated too; empty for none. `feedback` are the options for adding scenarios from feedback.
    """
    where = given.placement
    looked = look_at_sources(
        sources=given.sources,
        scenarios=given.scenarios,
        store=given.store,
        feedback={} if feedback is None else feedback,
        run=planned.run,
    )
    now = where.on_cpu(looked, secrets=MODEL_SECRETS).outputs
    made = ingest(
        sources=given.sources,
        environment=given.environment,
        embedding=given.embedding,
        options=given.index,
        state=now["sources"],
        code=given.code,
    )
    index = planned.indexing.on_cpu(made, hours=12, cached=True, secrets=MODEL_SECRETS).outputs["index"]
    kubernetes.use_secret_as_env(made, _IMAP_SECRET, {each: each for each in (PASSWORD, TOKEN)}, optional=True)
    loaded = load_scenarios(
        source=given.scenarios,
        index=index,
        seed=given.seed,
        state=now["scenarios"],
        store=given.store,
        current=current,
        code=given.code,
        feedback=now["feedback"],
    )
    where.on_cpu(loaded, cached=True, secrets=MODEL_SECRETS)
    return {"index": index, "scenarios": loaded.outputs["scenarios"]}


def evaluate(given: RunParameters, where: Placement, *, hours: float, cached: bool = False, **inputs: Any) -> Any:
    """Add a step that evaluates the base model and the adapters among `inputs`, and return it."""
    task = evaluate_policy(
        **inputs,
        base_model=given.base_model,
        judge=given.judge,
        limits=given.limits,
        choice=given.choice,
        agent=given.agent,
        code=given.code,
    )
    return where.on_gpu(add_agent_keys(task), hours=hours, cached=cached, secrets=MODEL_SECRETS)


def publish_if_gate_passes(given: TrainingParameters, run: Any, decided: Any, adapter: Any) -> None:
    """Add the last steps: publish the adapter if it passed the gate, deploy it, and watch it, if requested."""
    where = given.placement
    with dsl.If(decided.outputs["Output"] == True, name="passed"):  # noqa: E712 - Kubeflow compiles it
        published = publish_adapter(
            adapter=adapter,
            decision=decided.outputs["decision"],
            store=given.store,
            version=run,
            image=where.trainer_image,
        )
        where.on_cpu(published)
        served = deploy_agent(
            published=published.outputs["Output"],
            store=given.store,
            how=given.deploy,
            target=given.deployment,
            agent=given.agent,
        )
        where.on_cpu(served, hours=2.5)
        watched = watch_canary(
            published=published.outputs["Output"],
            store=given.store,
            how=given.deploy,
            target=given.deployment,
            served=served.output,
        )
        where.on_cpu(watched, hours=_WATCH_HOURS)
