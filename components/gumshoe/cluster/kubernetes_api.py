"""Connect to a Kubernetes cluster. Requests have deadlines, and errors are reported in plain words."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.network import find_ca_bundle, find_proxy, parse_proxy, proxy_headers, raise_if_untrusted

if TYPE_CHECKING:
    import websocket
    from kubernetes import client

_SECONDS = 20.0  # timeout of a request
_IN_EACH_NAMESPACE = "kube-root-ca.crt"  # ConfigMap
_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # Kubernetes mounts the pod's namespace here


class ClusterError(GumshoeError):
    """Report that the cluster rejected a request."""

    def __init__(
        self, code: str, message: str, status: int | None = None, causes: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(code, message)
        self.status = status
        """HTTP status of the answer, if there was one."""
        self.causes = causes
        """The causes that the API server lists, e.g. each field that another program manages."""


class ClusterUnavailableError(UnavailableError):
    """Report that a cluster does not answer, or answers with a server error."""

    def __init__(self, code: str, message: str, pause: float | None = None) -> None:
        super().__init__(code, message)
        self.pause = pause
        """Seconds to wait before the next request, if the cluster says so."""


@dataclass(frozen=True)
class Cluster:
    """Access one namespace of a cluster, with a context of KUBECONFIG or as the pod that this process runs in."""

    namespace: str
    context: str | None = None
    """Context of the kubeconfig; None for the current one."""

    @classmethod
    def of(cls, namespace: str | None, context: str | None) -> "Cluster":
        """Return the cluster of a context; the namespace defaults to the context's.

        Raises:
            UsageError: if there is no kubeconfig, or it has no such context.
        """
        return cls(namespace or _find_namespace(context), context)

    def call(self, method: Callable[..., Any], *arguments: Any, what: str = "the resource", **named: Any) -> Any:
        """Call a method of the Kubernetes client.

        Raises:
            ClusterError: if the cluster rejects the request.
            ClusterUnavailableError: if it does not answer in time.
        """
        with self.translate_errors(what):
            return method(*arguments, **named, _request_timeout=(_SECONDS, _SECONDS))

    def find(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a method like `call`, but return None if the object does not exist."""
        from kubernetes.client import ApiException

        with self.translate_errors():
            try:
                return method(*arguments, **named, _request_timeout=(_SECONDS, _SECONDS))
            except ApiException as error:
                if error.status == 404:
                    return None
                raise

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Any:
        """Send a request for which the client has no method, and return the answer as plain data.

        Raises:
            ClusterError: if the cluster rejects the request.
            ClusterUnavailableError: if it does not answer in time.
        """
        with self.translate_errors(path):
            return self._client.call_api(
                path,
                method,
                query_params=[*(query or {}).items()],
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
                response_type="object",
                _return_http_data_only=True,
                _request_timeout=(_SECONDS, _SECONDS),
            )

    def check(self) -> None:
        """Check that the cluster answers, before using clients that have no deadline."""
        from kubernetes import client

        self.call(client.VersionApi(self._client).get_code, what="the version of the API")

    @cached_property
    def namespace_uid(self) -> str:
        """The UID of an object that Kubernetes puts into each namespace.

        It tells equally named namespaces of different clusters apart, and is the same for a pod and for a workstation.
        The namespace itself may be read only by accounts with rights in the whole cluster.

        Raises:
            ClusterError: if the namespace does not exist, or may not be read.
            ClusterUnavailableError: if the cluster does not answer in time.
        """
        what = f"the ConfigMap {_IN_EACH_NAMESPACE}"
        found = self.call(self.core.read_namespaced_config_map, _IN_EACH_NAMESPACE, self.namespace, what=what)
        return str(found.metadata.uid)

    @cached_property
    def core(self) -> "client.CoreV1Api":
        from kubernetes import client

        return client.CoreV1Api(self._client)

    @contextmanager
    def open_websocket(self, path: str, query: Mapping[str, str]) -> "Iterator[websocket.WebSocket]":
        """Yield a WebSocket to the API, whose answers have a deadline. It is closed at the end of the block.

        Raises:
            ClusterError: if the cluster rejects the request.
            ClusterUnavailableError: if the connection cannot be made, or breaks off within the block.
        """
        import websocket
        from kubernetes.stream.ws_client import create_websocket, get_websocket_url

        client, headers = self._client, dict[str, str]()
        client.update_params_for_auth(headers, [], ["BearerToken"])
        url = get_websocket_url(f"{client.configuration.host}{path}", [*query.items()])
        try:
            connection = create_websocket(client.configuration, url, headers)
            connection.settimeout(_SECONDS)
            try:
                yield connection
            finally:
                connection.shutdown()
        except websocket.WebSocketBadStatusException as error:
            if error.status_code in (401, 403):
                raise ClusterError(
                    "cluster.access-denied",
                    f"Kubernetes denies access: {error.status_code} for {path}; use a context or a service account "
                    "that has this right",
                    error.status_code,
                ) from None
            raise ClusterUnavailableError(
                "cluster.api-unhealthy", f"the Kubernetes API answered {error.status_code} for {path}; try again later"
            ) from None
        except (websocket.WebSocketException, OSError) as error:
            raise_if_untrusted(error, "the Kubernetes API")
            raise ClusterUnavailableError(
                "cluster.unreachable", f"the Kubernetes API broke off: {shorten(error)}; try again later"
            ) from None

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
        with _translate_config_errors():
            if places := find_kubeconfig():
                config.load_kube_config(places, context=self.context, client_configuration=found)
                found.proxy = _find_proxy(places, self.context, found.host)
                found.proxy_headers = proxy_headers(found.proxy) if found.proxy else None
                found.ssl_ca_cert = found.ssl_ca_cert or find_ca_bundle()
            else:
                config.load_incluster_config(client_configuration=found)
        found.retries = 0  # the caller decides what to retry
        return client.ApiClient(found)

    def to_plain(self, answer: Any) -> Any:
        """Convert an object of the Kubernetes client to plain dictionaries."""
        return self._client.sanitize_for_serialization(answer)

    @contextmanager
    def translate_errors(self, what: str = "the resource") -> Iterator[None]:
        """Translate errors of the Kubernetes client.

        Raises:
            ClusterError: if the cluster rejects a request.
            ClusterUnavailableError: if it does not answer in time.
            UsageError: if its certificate is not trusted.
        """
        import urllib3
        from kubernetes.client import ApiException

        try:
            yield
        except ApiException as error:
            detail = _error_detail(error)
            if error.status == 401:
                raise ClusterError(
                    "cluster.unauthenticated",
                    f"Kubernetes does not accept these credentials: 401{detail}; log in again, or use another context "
                    "or service account",
                    401,
                ) from None
            if error.status == 403:
                raise ClusterError(
                    "cluster.access-denied",
                    f"Kubernetes denies access: 403{detail}; use a context or a service account that has this right, "
                    "or correct what the message names",
                    403,
                ) from None
            if error.status == 404:
                raise ClusterError(
                    "cluster.not-found",
                    f"{what} does not exist in namespace {self.namespace}: 404{detail}; check the namespace and the "
                    "name",
                    404,
                ) from None
            if error.status is None or error.status >= 500 or error.status == 429:
                raise ClusterUnavailableError(
                    "cluster.api-unhealthy",
                    f"the Kubernetes API failed: {error.status}{detail}; try again later",
                    _retry_after(error),
                ) from None
            raise ClusterError(
                "cluster.request-rejected",
                f"Kubernetes rejected the request: {error.status}{detail}",
                error.status,
                _error_causes(error),
            ) from None
        except urllib3.exceptions.HTTPError as error:
            raise_if_untrusted(error, "the Kubernetes API")
            reason = getattr(error, "reason", None) or error
            if _is_timeout(reason):
                raise ClusterUnavailableError(
                    "cluster.timeout",
                    "the Kubernetes API did not answer in time; check the context and the network, then try again",
                ) from None
            raise ClusterUnavailableError(
                "cluster.unreachable",
                f"the Kubernetes API cannot be reached: {shorten(reason)}; check the context and the network",
            ) from None
        except (ValueError, AttributeError, TypeError) as error:  # raised by the client for malformed answers
            raise ClusterError(
                "cluster.not-kubernetes",
                f"the server is not a Kubernetes API: {shorten(error)}; check the server address of the context",
            ) from None


def _find_namespace(context: str | None) -> str:
    """Return the namespace of a context, or of the pod that this process runs in."""
    from kubernetes import config

    places = find_kubeconfig()
    if places is None:
        if context is not None:
            raise UsageError(
                "cluster.no-kubeconfig", f"no kubeconfig found for context {context}; set KUBECONFIG to the file's path"
            )
        return _IN_POD.read_text(encoding="utf-8").strip()
    with _translate_config_errors():
        contexts, active = config.list_kube_config_contexts(places)
    chosen = active if context is None else next((each for each in contexts if each["name"] == context), None)
    if chosen is None:
        known = ", ".join(each["name"] for each in contexts)
        raise UsageError(
            "cluster.unknown-context", f"context {context} does not exist in the kubeconfig; use one of: {known}"
        )
    return str(chosen["context"].get("namespace") or "default")


def _find_proxy(places: str, context: str | None, host: str) -> str | None:
    """Return the proxy for a context's cluster as kubectl does: its `proxy-url`, or that of the environment."""
    from kubernetes import config
    from kubernetes.config.kube_config import KubeConfigMerger

    contexts, active = config.list_kube_config_contexts(places)
    chosen = next(each for each in contexts if each["name"] == context) if context else active
    clusters = KubeConfigMerger(places).config["clusters"]
    named = clusters.get_with_name(chosen["context"]["cluster"])["cluster"]
    proxy = named.safe_get("proxy-url")
    return parse_proxy(proxy, "proxy-url of the kubeconfig") if proxy else find_proxy(host)


def find_kubeconfig() -> str | None:
    """Return the path or paths of the kubeconfig; None in a pod without one.

    Raises:
        UsageError: if there is no kubeconfig, and this process does not run in a pod.
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
def _translate_config_errors() -> Iterator[None]:
    """Translate errors of the kubeconfig.

    Raises:
        UsageError: if the kubeconfig cannot be used.
    """
    from kubernetes.config import ConfigException

    try:
        yield
    except (ConfigException, OSError, ValueError) as error:
        raise UsageError(
            "cluster.invalid-kubeconfig",
            f"the kubeconfig cannot be used: {shorten(error)}; correct it, or set KUBECONFIG",
        ) from None


def _is_timeout(reason: object) -> bool:
    """Return True if a deadline passed. urllib3 counts refused connections as timeouts too."""
    import urllib3

    timeout, refused = urllib3.exceptions.TimeoutError, urllib3.exceptions.NewConnectionError
    return isinstance(reason, timeout) and not isinstance(reason, refused)


def _retry_after(error: Any) -> float | None:
    """Return the seconds of the Retry-After header, if there is one."""
    text = str((error.headers or {}).get("Retry-After") or "")
    return float(text) if text.isdigit() else None


def _error_detail(error: Any) -> str:
    """Return the message in an error response."""
    try:
        message = json.loads(error.body or "").get("message") or ""
    except (ValueError, AttributeError, TypeError):
        message = error.reason or ""
    return f": {shorten(message)}" if message else ""


def _error_causes(error: Any) -> list[Mapping[str, Any]]:
    """Return the causes in an error response."""
    try:
        return list(json.loads(error.body or "")["details"]["causes"])
    except (ValueError, KeyError, TypeError):
        return []


def shorten(text: object) -> str:
    """Return a text as one line of at most 300 characters."""
    return " ".join(str(text).split())[:300]
