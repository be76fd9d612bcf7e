"""A Kubernetes cluster: where it is, and its API, within deadlines and with errors in plain words."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumshoe.errors import GumshoeError, UnavailableError, UsageError

if TYPE_CHECKING:
    from kubernetes import client

_SECONDS = 20.0  # of a request
_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # where Kubernetes says where a pod is


class ClusterError(GumshoeError):
    """Report that a cluster refuses a request."""

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(code, message)
        self.status = status
        """HTTP status of the answer, if there was one."""


class ClusterUnavailableError(UnavailableError):
    """Report that a cluster does not answer, or answers with a server error."""

    def __init__(self, code: str, message: str, pause: float | None = None) -> None:
        super().__init__(code, message)
        self.pause = pause
        """Seconds to wait before the next request, if the cluster says so."""


@dataclass(frozen=True)
class Cluster:
    """One namespace of a cluster, by KUBECONFIG and its context, or by the pod that this runs in."""

    namespace: str
    context: str | None = None
    """Of the kubeconfig; its current one unless given."""

    @classmethod
    def of(cls, namespace: str | None, context: str | None) -> "Cluster":
        """
        Raises:
            UsageError: there is no way to a cluster, or no such context.
        """
        return cls(namespace or _own_namespace(context), context)

    def ask(self, method: Callable[..., Any], *arguments: Any, what: str = "the resource", **named: Any) -> Any:
        """Call a method of the published client.

        Raises:
            ClusterError: the cluster refuses.
            ClusterUnavailableError: it does not answer in time.
        """
        with self.explained(what):
            return method(*arguments, **named, _request_timeout=(_SECONDS, _SECONDS))

    def find(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """As `ask`; None where there is nothing of that name."""
        from kubernetes.client import ApiException

        with self.explained():
            try:
                return method(*arguments, **named, _request_timeout=(_SECONDS, _SECONDS))
            except ApiException as error:
                if error.status == 404:
                    return None
                raise

    def check(self) -> None:
        """See whether the cluster answers, before anything is asked of it that has no deadline of its own."""
        from kubernetes import client

        self.ask(client.VersionApi(self._client).get_code, what="the version of the API")

    @cached_property
    def core(self) -> "client.CoreV1Api":
        from kubernetes import client

        return client.CoreV1Api(self._client)

    @cached_property
    def apps(self) -> "client.AppsV1Api":
        from kubernetes import client

        return client.AppsV1Api(self._client)

    @cached_property
    def custom(self) -> "client.CustomObjectsApi":
        from kubernetes import client

        return client.CustomObjectsApi(self._client)

    @cached_property
    def _client(self) -> "client.ApiClient":
        from kubernetes import client, config

        found = client.Configuration()
        with _configured():
            if places := kubeconfig():
                config.load_kube_config(places, context=self.context, client_configuration=found)
            else:
                config.load_incluster_config(client_configuration=found)
        found.retries = 0  # the caller knows what may be asked again
        return client.ApiClient(found)

    def plain(self, answer: Any) -> Any:
        """What the published client made of an answer, as it came."""
        return self._client.sanitize_for_serialization(answer)

    @contextmanager
    def explained(self, what: str = "the resource") -> Iterator[None]:
        """
        Raises:
            ClusterError, ClusterUnavailableError: as `ask`.
        """
        import urllib3
        from kubernetes.client import ApiException

        try:
            yield
        except ApiException as error:
            said = _said(error)
            if error.status == 401:
                raise ClusterError(
                    "cluster.unauthenticated",
                    f"Kubernetes does not accept these credentials: 401{said}; log in again, or use another context or "
                    "service account",
                    401,
                ) from None
            if error.status == 403:
                raise ClusterError(
                    "cluster.access-denied",
                    f"Kubernetes denies access: 403{said}; use a context or a service account that has this right",
                    403,
                ) from None
            if error.status == 404:
                raise ClusterError(
                    "cluster.not-found",
                    f"{what} does not exist in namespace {self.namespace}: 404{said}; check the namespace and the name",
                    404,
                ) from None
            if error.status is None or error.status >= 500 or error.status == 429:
                raise ClusterUnavailableError(
                    "cluster.api-unhealthy",
                    f"the Kubernetes API failed: {error.status}{said}; try again later",
                    _pause(error),
                ) from None
            raise ClusterError(
                "cluster.request-rejected", f"Kubernetes rejected the request: {error.status}{said}", error.status
            ) from None
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            if _is_timeout(reason):
                raise ClusterUnavailableError(
                    "cluster.timeout",
                    "the Kubernetes API did not answer in time; check the context and the network, then try again",
                ) from None
            raise ClusterUnavailableError(
                "cluster.unreachable",
                f"the Kubernetes API cannot be reached: {short(reason)}; check the context and the network",
            ) from None
        except (ValueError, AttributeError, TypeError) as error:  # what the client makes of other documents
            raise ClusterError(
                "cluster.not-kubernetes",
                f"the server is not a Kubernetes API: {short(error)}; check the server address of the context",
            ) from None


def _own_namespace(context: str | None) -> str:
    """The namespace of a context, or of the pod that this runs in."""
    from kubernetes import config

    places = kubeconfig()
    if places is None:
        if context is not None:
            raise UsageError(
                "cluster.no-kubeconfig", f"no kubeconfig found for context {context}; set KUBECONFIG to the file's path"
            )
        return _IN_POD.read_text(encoding="utf-8").strip()
    with _configured():
        contexts, active = config.list_kube_config_contexts(places)
    chosen = active if context is None else next((each for each in contexts if each["name"] == context), None)
    if chosen is None:
        known = ", ".join(each["name"] for each in contexts)
        raise UsageError(
            "cluster.unknown-context", f"context {context} does not exist in the kubeconfig; use one of: {known}"
        )
    return str(chosen["context"].get("namespace") or "default")


def kubeconfig() -> str | None:
    """The file that says where clusters are, or several as KUBECONFIG has them; None in a pod, whose own cluster it is.

    Raises:
        UsageError: there are none, and this is no pod.
    """
    places = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if any(Path(each).expanduser().is_file() for each in places.split(os.pathsep) if each):
        return places
    if _IN_POD.exists():
        return None
    raise UsageError(
        "cluster.no-kubeconfig",
        f"no kubeconfig found at {places}, and this process does not run in a pod; set KUBECONFIG to the file's path",
    )


@contextmanager
def _configured() -> Iterator[None]:
    """
    Raises:
        UsageError: a kubeconfig cannot be used.
    """
    from kubernetes.config import ConfigException

    try:
        yield
    except (ConfigException, OSError, ValueError) as error:
        raise UsageError(
            "cluster.invalid-kubeconfig",
            f"the kubeconfig cannot be used: {short(error)}; correct it, or set KUBECONFIG",
        ) from None


def _is_timeout(reason: object) -> bool:
    """Return whether a deadline passed; urllib3 counts connections that were refused as timeouts too."""
    import urllib3

    timeout, refused = urllib3.exceptions.TimeoutError, urllib3.exceptions.NewConnectionError
    return isinstance(reason, timeout) and not isinstance(reason, refused)


def _pause(error: Any) -> float | None:
    """What an answer says of when to ask again."""
    text = str((error.headers or {}).get("Retry-After") or "")
    return float(text) if text.isdigit() else None


def _said(error: Any) -> str:
    """What an answer says of itself."""
    try:
        said = json.loads(error.body or "").get("message") or ""
    except (ValueError, AttributeError, TypeError):
        said = error.reason or ""
    return f": {short(said)}" if said else ""


def short(said: object) -> str:
    """A text in one line of 300 characters at most."""
    return " ".join(str(said).split())[:300]
