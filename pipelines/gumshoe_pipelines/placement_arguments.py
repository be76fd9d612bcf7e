"""Check the arguments of a pipeline that say where and with what resources its pods run."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from gumshoe.artifacts.storage import split_uri
from gumshoe.cluster.pod_environment import CA_CONFIG_MAP
from gumshoe.cluster.trainjob_spec import TrainJobSpec
from gumshoe.errors import UsageError
from gumshoe_pipelines.step_resources import MIG, SHARED_MEMORY, ResourceParameters, check_job

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_TRAINER = re.compile(r"(?:^|/)trainer(?:[:@]|$)")  # as images/build.sh names it
_SECONDS = "tolerationSeconds"
_TOLERATION = {"key", "operator", "value", "effect", _SECONDS}
_OF_SERVERS = ("rollout_gpus", "priority_class", "runtime_class", "scheduler")  # options of `job`
_RESOURCES = tuple(each.name for each in fields(ResourceParameters))


def _check_image(name: str, arguments: Mapping[str, Any], _: bool) -> None:
    if not arguments[name].strip():
        raise UsageError(
            "pipelines.empty-image", "must not be empty; write the name of an image, as images/build.sh prints it"
        )


def _check_worker_image(arguments: Mapping[str, Any], is_local: bool) -> None:
    """Check that steps without a GPU do not get the trainer's image if that cannot do their work."""
    _check_image("worker_image", arguments, is_local)
    image = arguments["worker_image"]
    if is_local or not _TRAINER.search(image):
        return
    missing = ["deploy"] if arguments.get("deploy", "none") != "none" else []
    if kinds := _find_library_redaction(arguments.get("feedback") or {}):
        missing.append(f"redact {', '.join(kinds)} in feedback")
    if missing:
        raise UsageError(
            "pipelines.trainer-as-worker",
            f"the image {image} cannot {' or '.join(missing)}; set worker_image to the worker's image (the step that "
            "embeds runs in trainer_image by itself)",
        )


def _find_library_redaction(feedback: Mapping[str, Any]) -> list[str]:
    """Return the kinds of personal data that the options of feedback redact with libraries of the worker's image."""
    from gumshoe.scenarios.feedback_options import FeedbackOptions
    from gumshoe.scenarios.personal_data import KINDS_OF_LIBRARIES

    if not feedback:
        return []
    try:
        kinds = FeedbackOptions.from_mapping(feedback).redacted_kinds
    except UsageError:  # reported by the check of `feedback`
        return []
    return [each for each in kinds if each in KINDS_OF_LIBRARIES]


def _check_resource(name: str, arguments: Mapping[str, Any], _: bool) -> None:
    given = ResourceParameters(**{name: value for name, value in arguments.items() if name in _RESOURCES})
    if fault := dict(given.find_faults()).get(name):
        raise fault


def _check_pod_option(name: str, arguments: Mapping[str, Any], _: bool) -> None:
    value = arguments[name]
    pattern = _LABEL if name == "cache" else _NAME  # Kubeflow names the volume after the claim
    if value and not pattern.fullmatch(value):
        raise UsageError(
            "pipelines.invalid-object-name",
            f"must be the name of a Kubernetes object, got {value!r}; use at most 63 lower-case letters, digits and "
            "dashes",
        )
    if name == "cache" and value in (SHARED_MEMORY, CA_CONFIG_MAP):
        raise UsageError(
            "pipelines.invalid-object-name",
            f"must not be {value}, as another volume of the pods has this name; use another PersistentVolumeClaim",
        )
    if name == "priority" and value and not arguments.get("queue"):
        raise UsageError(
            "pipelines.priority-without-queue",
            f"has no effect without a queue, got {value!r}; set queue to a Kueue LocalQueue, or leave priority out",
        )


def _check_nodes(arguments: Mapping[str, Any], is_local: bool) -> None:
    nodes = arguments.get("nodes", 1)
    if nodes < 1:
        raise UsageError("pipelines.invalid-nodes", f"must be an integer >= 1, got {nodes}")
    if nodes == 1:
        check_job(nodes, arguments.get("job", {}))
        return
    try:
        job = TrainJobSpec.of(arguments.get("job", {}))
    except UsageError:  # reported by the check of `job`
        return
    if split_uri(arguments["store"])[0] != "s3":
        raise UsageError(
            "pipelines.store-not-in-s3", f"other nodes cannot read from {arguments['store']}; use s3://BUCKET/PREFIX"
        )
    if is_local:
        raise UsageError(
            "pipelines.single-machine",
            f"a run on this machine has one node, got {nodes}; leave nodes out, or submit the pipeline to a cluster",
        )
    _check_servers(arguments, job)


def _check_job(arguments: Mapping[str, Any], _: bool) -> None:
    if arguments.get("nodes", 1) == 1:  # reported by the check of `nodes`
        return
    given = arguments["job"]
    job = TrainJobSpec.of(given)
    if job.priority and not given.get("queue", arguments.get("queue")):
        raise UsageError(
            "pipelines.priority-without-queue",
            f"priority has no effect without a queue, got {job.priority!r}; set queue to a Kueue LocalQueue, or leave "
            "priority out",
        )
    if not job.rollout_servers and (idle := [name for name in _OF_SERVERS if given.get(name)]):
        raise UsageError(
            "pipelines.no-servers-for-options",
            f"{', '.join(idle)}: no effect without rollout servers, got rollout_servers 0; leave it out",
        )
    resource = arguments.get("gpu_resource", "")
    if MIG in resource and (job.rollout_gpus or 0) > 1:
        raise UsageError(
            "pipelines.several-mig-devices", f"rollout_gpus must be 1 with {resource}, got {job.rollout_gpus}"
        )


def _check_node_selector(arguments: Mapping[str, Any], _: bool) -> None:
    for label, value in arguments["node_selector"].items():
        if not (isinstance(label, str) and isinstance(value, str)):
            raise UsageError(
                "pipelines.invalid-node-selector",
                f"labels and values must be strings, got {label!r}: {value!r}; put them in quotes, e.g. "
                '{gpu: "true"}',
            )


def _check_tolerations(arguments: Mapping[str, Any], _: bool) -> None:
    for each in arguments["tolerations"]:
        known = isinstance(each, Mapping) and each.keys() <= _TOLERATION
        if not known or not all(isinstance(value, str) for name, value in each.items() if name != _SECONDS):
            raise UsageError(
                "pipelines.invalid-tolerations",
                f"a toleration must be a mapping of strings with {', '.join(sorted(_TOLERATION))}, got {each!r}; write "
                "e.g. {key: nvidia.com/gpu, operator: Exists}",
            )


def _check_servers(arguments: Mapping[str, Any], job: TrainJobSpec) -> None:
    """Check that several nodes have the rollout servers that they need, as far as the settings are known here.

    Raises:
        UsageError: if they have none, or some that they would not use.
    """
    from gumshoe.training.settings_sources import CONFIGS, resolve
    from gumshoe_pipelines.trainjob_step import check_servers

    config = str(arguments.get("config", ""))
    is_known = not config or (CONFIGS / f"{config}.yaml").exists()
    if not (is_known or job.rollout_servers):  # the file may name servers
        return
    sweep = [each.get("settings") for each in arguments.get("sweep", []) if isinstance(each, dict)]
    for settings in sweep or [arguments.get("settings", {})]:
        try:
            known = resolve((is_known and config) or None, settings or {}, {}).settings
        except UsageError:  # reported by the check of `config`
            continue
        check_servers(known, job)


PLACEMENT_CHECKS: dict[str, Callable[[Mapping[str, Any], bool], None]] = {
    "worker_image": _check_worker_image,
    "trainer_image": partial(_check_image, "trainer_image"),
    **{name: partial(_check_resource, name) for name in _RESOURCES},
    **{name: partial(_check_pod_option, name) for name in ("queue", "priority", "cache", "image_pull_secret")},
    "nodes": _check_nodes,
    "job": _check_job,
    "node_selector": _check_node_selector,
    "tolerations": _check_tolerations,
}
"""Check of each parameter. It gets all arguments, and True if the pipeline runs on this machine."""
