"""Use Helm as a Python library (helm-python-sdk)."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from gumshoe.cluster.helm import HISTORY, TIMEOUT, HelmChart, HelmFailure, HelmRelease, Release
from gumshoe.cluster.kubernetes_api import Cluster, find_kubeconfig
from gumshoe.cluster.release_check import library_manager

T = TypeVar("T")
_GRACE = 10.0  # seconds beyond Helm's own timeout


@dataclass(frozen=True)
class HelmLibrary:
    """Call the library in a thread with a deadline: a call cannot be interrupted."""

    chart: Path
    cluster: Cluster

    def read_chart(self) -> HelmChart:
        return HelmChart(str(self._chart.version), dict(self._chart.values))

    def check_schema(self, values: dict[str, Any]) -> None:
        _call(lambda: self._chart.validate_schema(values))

    def render(self, name: str, values: dict[str, Any]) -> str:
        rendered = _call(lambda: self._chart.render(values, name=name, namespace=self.cluster.namespace))
        return "\n---\n".join(text for name, text in rendered.items() if name.endswith((".yaml", ".yml")))

    def list_releases(self, chart_name: str) -> list[Release]:
        found = _call(lambda: self._config.list(all_states=True))
        return [_parse_release(each) for each in found if each.get("chart_name") == chart_name]

    def find(self, name: str) -> HelmRelease | None:
        try:
            found = _call(lambda: self._config.get_all(name))  # `status` also reads each object from the cluster
        except HelmFailure as failure:
            if failure.reason == "not-found":
                return None
            raise
        summary = found["summary"]
        about = _call(lambda: self._config.get_metadata(name, revision=summary["revision"]))
        manager = library_manager() if about.get("applyMethod") == "ssa" else None
        chart, manifest = summary.get("chart_name") or "", summary.get("manifest") or ""
        return HelmRelease(_parse_release(summary), chart, dict(found.get("config") or {}), manifest, manager)

    def list_history(self, name: str) -> list[Release]:
        return [_parse_release(each) for each in _call(lambda: self._config.history(name))]

    def get_values(self, name: str, revision: int) -> dict[str, Any]:
        return dict(_call(lambda: self._config.get_values(name, revision=revision)) or {})

    def get_manifest(self, name: str, revision: int) -> str:
        return str(_call(lambda: self._config.status(name, revision=revision)).get("manifest") or "")

    def install(self, name: str, values: dict[str, Any], description: str, *, create_namespace: bool) -> None:
        self._change(self._config.install, name, values, description, create_namespace=create_namespace)

    def upgrade(self, name: str, values: dict[str, Any], description: str) -> None:
        self._change(self._config.upgrade, name, values, description, max_history=HISTORY, reset_values=True)

    def _change(
        self, method: Callable[..., Any], name: str, values: dict[str, Any], description: str, **options: Any
    ) -> None:
        space, seconds = self.cluster.namespace, round(TIMEOUT)
        _call(
            lambda: method(
                self._chart, name, values, namespace=space, timeout=seconds, description=description, **options
            )
        )

    def rollback(self, name: str, revision: int) -> None:
        _call(lambda: self._config.rollback(name, version=revision, timeout=round(TIMEOUT)))

    def uninstall(self, name: str) -> None:
        _call(lambda: self._config.uninstall(name, timeout=round(TIMEOUT)))

    @cached_property
    def _config(self) -> Any:
        from helm_python import Config

        place = find_kubeconfig()
        one = place if place and os.pathsep not in place else None  # Helm reads several only from the environment
        return Config(
            namespace=self.cluster.namespace,
            kube_context=self.cluster.context,
            kubeconfig_path=Path(one).expanduser() if one else None,
        )

    @cached_property
    def _chart(self) -> Any:
        from helm_python import Chart

        try:
            return _call(lambda: Chart.load(self.chart))
        except HelmFailure as failure:
            raise HelmFailure(f"{self.chart}: {failure}", failure.reason) from None


def _call(call: Callable[[], T]) -> T:
    """Run a call in a thread, which is abandoned after the deadline.

    Raises:
        HelmFailure: if the call fails or does not end in time.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT + _GRACE)
    if errors:
        with _translate_errors():
            raise errors[0]
    if not results:
        raise HelmFailure("", "timeout")
    return results[0]


@contextmanager
def _translate_errors() -> Iterator[None]:
    from helm_python import (
        HelmChartLoadError,
        HelmError,
        HelmKubeError,
        HelmNotFoundError,
        HelmRenderError,
        HelmValuesError,
    )

    try:
        yield
    except HelmNotFoundError as error:
        raise HelmFailure(str(error), "not-found") from None
    except (HelmRenderError, HelmValuesError) as error:
        raise HelmFailure(str(error), "values") from None
    except HelmChartLoadError as error:
        raise HelmFailure(str(error), "chart") from None
    except HelmKubeError as error:
        raise HelmFailure(str(error), "kubernetes") from None
    except HelmError as error:
        raise HelmFailure(str(error)) from None


def _parse_release(found: dict[str, Any]) -> Release:
    return Release(
        found["name"],
        found["namespace"],
        found["revision"],
        found["status"],
        found.get("chart_version", ""),
        datetime.fromisoformat(found["deployed_at"]),
    )
