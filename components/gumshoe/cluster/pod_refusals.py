"""Explain why the cluster refuses to create pods, and what to do.

A refused pod does not exist, so no pod reports the reason. It is in the Deployment's condition `ReplicaFailure`, in
events of the Job that should have created the pod, or in the Argo workflow.
"""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, shorten

_REFUSED_POD = re.compile(
    r'^(?:unable to create pods: |Error creating: )?(?:pods? "[^"]*" is (?:forbidden|invalid): )?', re.I
)
_ARGO = ("argoproj.io", "v1alpha1", "workflows")
_RUN = "pipeline/runid"  # label of Kubeflow Pipelines
_EXECUTOR = "executor"  # name of the pod of each step, within the group that has the step's name
_DRIVER = "-driver"  # ending of the name of the pod that prepares a step


def _explain_quota(found: re.Match[str]) -> str:
    requested, limited = _parse_amounts(found["requested"]), _parse_amounts(found["limited"])
    if any(amount > limited.get(name, amount) for name, amount in requested.items()):
        return f"the pod needs more than quota {found['quota']} allows: request less, or ask for a higher quota"
    return f"quota {found['quota']} is used up: wait until other pods end, or ask for a higher quota"


def _parse_amounts(text: str) -> dict[str, Decimal]:
    """Parse the amounts in the message of a quota, e.g. `pods=1,requests.memory=4Gi`."""
    from kubernetes.utils.quantity import parse_quantity

    pairs = (each.partition("=") for each in text.split(","))
    with suppress(ValueError):
        return {name.strip(): parse_quantity(amount.strip()) for name, _, amount in pairs}
    return {}


_CAUSES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"exceeded quota: (?P<quota>[^,]+), requested: (?P<requested>.+), used: .+, limited: (?P<limited>.+)",
     _explain_quota),
    (r"failed quota: (?P<quota>[^:]+): must specify (?P<missing>[^;]+)",
     r"quota \g<quota> requires the pod to specify \g<missing>: set them, or add a LimitRange with defaults"),
    (r'violates PodSecurity "(?P<level>[^":]+)',
     r"pod security level \g<level> of the namespace forbids it: change the pod, or label the namespace "
     r"pod-security.kubernetes.io/enforce with a lower level"),
    (r'service account \S*: serviceaccount "(?P<name>[^"]+)" not found',
     r"ServiceAccount \g<name> does not exist: create it, or name another one"),
    (r"(?:minimum|maximum) \S+ usage per |max limit to request ratio per ",
     "a LimitRange of the namespace forbids these resources: change requests and limits, or the LimitRange"),
    (r'admission webhook "(?P<name>[^"]+)" denied',
     r"admission webhook \g<name> denies it: change the pod, or ask who runs the webhook"),
    (r'failed calling webhook "(?P<name>[^"]+)"',
     r"admission webhook \g<name> does not answer: ask who runs it"),
    (r"no PriorityClass with name (?P<name>\S+) was found",
     r"PriorityClass \g<name> does not exist: create it, or name another one"),
    (r'RuntimeClass "(?P<name>[^"]+)" not found',
     r"RuntimeClass \g<name> does not exist: create it, or name another one"),
    (r"security context constraint",
     "no security context constraint (SCC) allows it: use one that does, or change the pod"),
)  # fmt: skip


def explain_refusal(message: str) -> str:
    """Explain why the API server refuses a pod, and what to do; with the API server's own message at the end.

    The details in parentheses may change with each attempt, e.g. the amounts that are in use.
    """
    text = _REFUSED_POD.sub("", message.strip())
    for pattern, explanation in _CAUSES:
        found = re.search(pattern, text)
        if found:
            advice = found.expand(explanation) if isinstance(explanation, str) else explanation(found)
            return f"the cluster refuses the pod: {advice} ({shorten(text)})"
    return f"the cluster refuses the pod: {shorten(text)}"


def find_deployment_refusal(deployment: Any) -> str:
    """Explain why pods of a Deployment are refused; empty if they are not.

    `deployment` is an object of the Kubernetes client.
    """
    for each in deployment.status.conditions or []:
        if each.type == "ReplicaFailure" and each.status == "True":
            return explain_refusal(each.message or each.reason or "no reason given")
    return ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A warning of a controller that cannot create something."""

    kind: str
    """Kind of the object that the event is about, e.g. Job."""
    name: str
    text: str


def find_refusals(cluster: Cluster, name: str, since: datetime) -> list[Refusal]:
    """Return the newest warnings of controllers about an object and those made for it, newest first.

    These have its name, or begin with it and a dash. Events of pods do not count, and neither do those before `since`,
    which has a time zone.

    Raises:
        ClusterError: if the cluster rejects the request for the events.
        ClusterUnavailableError: if the cluster does not answer.
    """
    found = cluster.call(cluster.core.list_namespaced_event, cluster.namespace, field_selector="type=Warning").items
    own = [(_time_of(each), each) for each in found if _is_about(each.involved_object, name)]
    newest = sorted((each for each in own if each[0] and each[0] >= since), key=lambda each: each[0], reverse=True)
    return [Refusal(each.involved_object.kind, each.involved_object.name, _explain_event(each)) for _, each in newest]


def _is_about(about: Any, name: str) -> bool:
    found = about.name or ""
    return about.kind != "Pod" and (found == name or found.startswith(f"{name}-"))


def _time_of(event: Any) -> Any:
    """Return when an event was last seen."""
    last = event.series.last_observed_time if event.series else None
    return last or event.last_timestamp or event.event_time or event.metadata.creation_timestamp


def _explain_event(event: Any) -> str:
    message = event.message or event.reason or ""
    if event.reason == "FailedCreate":
        return explain_refusal(message)
    return f"{event.reason}: {shorten(message)}"


def find_step_refusals(cluster: Cluster, run_id: str) -> dict[str, str]:
    """Return why pods of a pipeline run's steps were refused, by the name of the step.

    Argo creates the pods of a run. It tries again if a quota is used up, and the step fails otherwise. Either way, only
    the workflow has the reason.

    Raises:
        ClusterError: if the cluster rejects the request, or has no Argo workflows.
        ClusterUnavailableError: if the cluster does not answer.
    """
    listed = cluster.call(
        cluster.custom.list_namespaced_custom_object,
        _ARGO[0],
        _ARGO[1],
        cluster.namespace,
        _ARGO[2],
        label_selector=f"{_RUN}={run_id}",
    )
    return dict(each for workflow in listed["items"] for each in _list_step_refusals(workflow))


def _list_step_refusals(workflow: dict[str, Any]) -> Iterator[tuple[str, str]]:
    status = workflow.get("status") or {}
    nodes = status.get("nodes") or {}
    if status.get("compressedNodes"):  # Argo's form of a large status
        nodes = json.loads(gzip.decompress(base64.b64decode(status["compressedNodes"])))
    for each in nodes.values():
        message = each.get("message") or ""
        if each.get("type") != "Pod" or each.get("phase") not in ("Pending", "Error") or not _is_refusal(message):
            continue
        name = each.get("displayName") or each.get("name") or ""
        if name == _EXECUTOR and each.get("boundaryID") in nodes:
            name = nodes[each["boundaryID"]].get("displayName") or name
        yield name.removesuffix(_DRIVER), explain_refusal(message)


def _is_refusal(message: str) -> bool:
    """Return True if a message is the API server's, and not about a pod that exists."""
    return "forbidden" in message or "denied the request" in message or "failed calling webhook" in message
