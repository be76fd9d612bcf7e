"""Address of the Kubeflow Pipelines API in a cluster, and the token of a pod for it."""

import os
from pathlib import Path

IN_CLUSTER_URL = "http://ml-pipeline.kubeflow.svc.cluster.local:8888"
"""Address of the API in the namespace of a usual installation."""
AUDIENCE = "pipelines.kubeflow.org"
"""Audience that the API requires in tokens of service accounts."""


def find_pod_token() -> Path:
    """Return the file in which Kubeflow mounts a service account's token for `AUDIENCE`. It may not exist.

    The kubelet replaces the token in time, so read the file for each request.
    """
    return Path(os.environ.get("KF_PIPELINES_SA_TOKEN_PATH") or "/var/run/secrets/kubeflow/pipelines/token")
