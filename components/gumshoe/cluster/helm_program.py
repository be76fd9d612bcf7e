"""Use Helm as the program `helm`, version 3 or 4."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from gumshoe.cluster.helm import HISTORY, TIMEOUT, HelmChart, HelmFailure, HelmRelease, Release
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.release_check import PROGRAM_MANAGER
from gumshoe.terminal import err, printable

_GRACE = 10.0  # seconds beyond Helm's own timeout, and between SIGTERM and SIGKILL
_VERSION_TIMEOUT = 10.0  # seconds that `helm version` may take
_VERSION = re.compile(r"v([34])\.\d+\.\d+")
_ERROR = re.compile(r"^Error: ", re.M)
_CHART = re.compile(r"(.+?)-(v?\d+\.\d+\.\d+.*)")  # name and version, as `helm list` joins them
_TIME_FORMAT = "2006-01-02T15:04:05Z07:00"  # ISO 8601, as Go describes it
_HINT = "Use --debug flag to render out invalid YAML"
_OWN_VARIABLES = ("HELM_KUBE", "HELM_NAMESPACE", "HELM_DEBUG")  # would contradict the arguments, or mix with the output


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is Helm."""

    path: str
    major: int
    """Major version: 3 or 4."""


def find_program() -> Program | None:
    """Return the program `helm` on the path, or None if it does not exist or is not Helm 3 or 4.

    Other programs have this name too: Debian's `helm` is a synthesizer.
    """
    path = shutil.which("helm")
    if path is None:
        return None
    try:
        asked = subprocess.run(  # noqa: S603 - found on the user's own path
            [path, "version", "--template", "{{.Version}}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.match(asked.stdout.decode(errors="replace"))
    return Program(path, int(found[1])) if found and asked.returncode == 0 else None


@dataclass(frozen=True)
class HelmProgram:
    """Run the program for each call. Values go through its standard input, because others can read arguments."""

    program: Program
    chart: Path
    cluster: Cluster
    _warnings: set[str] = field(default_factory=set)
    """Lines of Helm's standard error that were already printed."""

    def read_chart(self) -> HelmChart:
        return self._chart

    @cached_property
    def _chart(self) -> HelmChart:
        try:
            about, defaults = (
                yaml.safe_load(self._run("show", part, str(self.chart))) or {} for part in ("chart", "values")
            )
            return HelmChart(str(about["version"]), dict(defaults))
        except HelmFailure as failure:
            reason = "chart" if failure.reason == "other" else failure.reason
            raise HelmFailure(f"{self.chart}: {failure}", reason) from None
        except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise HelmFailure(f"{self.chart}: {error}", "chart") from None

    def check_schema(self, values: dict[str, Any]) -> None:
        try:
            self.render("schema", values)
        except HelmFailure as failure:
            if "schema" in str(failure):  # Helm checks the schema before it renders anything
                raise

    def render(self, name: str, values: dict[str, Any]) -> str:
        self.read_chart()
        try:
            return self._run("template", name, str(self.chart), *self._namespace, "--values", "-", values=values)
        except HelmFailure as failure:
            raise HelmFailure(str(failure), "values" if failure.reason == "other" else failure.reason) from None

    def list_releases(self, chart_name: str) -> list[Release]:
        options = ["--all"] if self.program.major == 3 else []  # Helm 4 lists all by default
        found = self._ask("list", "--max", "10000", "--time-format", _TIME_FORMAT, *options)
        releases = []
        with _reading("list"):
            for each in found:
                name, version = _split_chart(each["chart"])
                if name == chart_name:
                    releases.append(_parse_release(each, each["name"], each["namespace"], version))
        return releases

    def find(self, name: str) -> HelmRelease | None:
        try:
            about = self._ask("get", "metadata", name)  # `helm status` would read all objects of the release too
        except HelmFailure as failure:
            if failure.reason == "not-found":
                return None
            raise
        with _reading("get metadata"):
            stored = {**about, "updated": about["deployedAt"]}
            release, chart = _parse_release(stored, name, about["namespace"], about["version"]), str(about["chart"])
        manifest = self.get_manifest(name, release.revision)
        manager = PROGRAM_MANAGER if about.get("applyMethod") == "ssa" and self.program.major > 3 else None
        return HelmRelease(release, chart, self.get_values(name, release.revision), manifest, manager)

    def list_history(self, name: str) -> list[Release]:
        found, space = self._ask("history", name), self.cluster.namespace
        with _reading("history"):
            return [_parse_release(each, name, space, _split_chart(each["chart"])[1]) for each in found]

    def get_values(self, name: str, revision: int) -> dict[str, Any]:
        found = self._ask("get", "values", name, "--revision", str(revision))
        with _reading("get values"):
            return dict(found or {})

    def get_manifest(self, name: str, revision: int) -> str:
        return self._run("get", "manifest", name, "--revision", str(revision), *self._access)

    def install(self, name: str, values: dict[str, Any], description: str, *, create_namespace: bool) -> None:
        options = ["--create-namespace"] if create_namespace else []
        self._change("install", name, values, description, *options)

    def upgrade(self, name: str, values: dict[str, Any], description: str) -> None:
        self._change("upgrade", name, values, description, "--history-max", str(HISTORY), "--reset-values")

    def _change(self, verb: str, name: str, values: dict[str, Any], description: str, *options: str) -> None:
        options = (*options, "--description", description, "--values", "-")
        self._run(verb, name, str(self.chart), *self._access, *self._timeout, *options, values=values)

    def rollback(self, name: str, revision: int) -> None:
        self._run("rollback", name, str(revision), *self._access, *self._timeout)

    def uninstall(self, name: str) -> None:
        self._run("uninstall", name, *self._access, *self._timeout)

    @property
    def _namespace(self) -> list[str]:
        return ["--namespace", self.cluster.namespace]

    @property
    def _access(self) -> list[str]:
        """Arguments that select the namespace and the cluster. Helm reads KUBECONFIG itself."""
        return [*self._namespace, *(["--kube-context", self.cluster.context] if self.cluster.context else [])]

    @property
    def _timeout(self) -> list[str]:
        return ["--timeout", f"{TIMEOUT:.0f}s"]

    def _ask(self, *arguments: str) -> Any:
        """Run Helm and parse its answer.

        Raises:
            HelmFailure: if Helm fails, or does not answer with JSON.
        """
        text = self._run(*arguments, *self._access, "--output", "json")
        try:
            return json.loads(text)
        except ValueError:
            raise HelmFailure(f"helm {arguments[0]} did not answer with JSON but with {text[:200]!r}") from None

    def _run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run Helm and return its output. Print its warnings.

        Raises:
            HelmFailure: if Helm fails or does not end in time.
        """
        given = json.dumps(values) if values is not None else ""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        try:
            process = subprocess.Popen(  # noqa: S603 - found on the user's own path
                [self.program.path, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise HelmFailure(f"{self.program.path} cannot be started: {error}") from None
        with process:
            output, errors = _communicate(process, given)
        if process.returncode == 0:
            self._warn(errors)
            return output
        raise _parse_failure(errors or output, process.returncode)

    def _warn(self, text: str) -> None:
        """Print warnings, each one once."""
        for line in filter(None, map(str.strip, text.splitlines())):
            if line not in self._warnings:
                self._warnings.add(line)
                err.print(f"helm: {printable(line)}", soft_wrap=True)


@contextmanager
def _reading(command: str) -> Iterator[None]:
    """Report an answer that does not have the expected form.

    Raises:
        HelmFailure: if reading it fails.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HelmFailure(f"the answer of `helm {command}` does not have the expected form: {error!r}") from None


def _communicate(process: "subprocess.Popen[str]", given: str) -> tuple[str, str]:
    """Write to a process and return its output. Stop it after the deadline, and if this process is interrupted.

    Raises:
        HelmFailure: if it does not end in time.
    """
    try:
        return process.communicate(given, TIMEOUT + _GRACE)
    except subprocess.TimeoutExpired:
        _stop(process)
        raise HelmFailure("", "timeout") from None
    except BaseException:
        _stop(process)
        raise


def _stop(process: "subprocess.Popen[str]") -> None:
    """End a process. Helm notes in the release that a change was interrupted, if it gets the time for that."""
    process.terminate()
    try:
        process.communicate(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()


def _parse_failure(text: str, status: int) -> HelmFailure:
    """Return the failure that Helm describes after `Error: `, without its log before that."""
    message = _ERROR.split(text, maxsplit=1)[-1].replace(_HINT, "").strip()
    if re.search(r"release: not found|release not loaded", message, re.I):
        return HelmFailure(message, "not-found")
    return HelmFailure(message or f"helm ended with status {status}")


def _split_chart(chart: str) -> tuple[str, str]:
    """Split a chart's name and version, e.g. `gumshoe-agent-0.1.0`."""
    found = _CHART.fullmatch(chart)
    return (found[1], found[2]) if found else (chart, "")


def _parse_release(found: Mapping[str, Any], name: str, namespace: str, chart_version: str) -> Release:
    updated = datetime.fromisoformat(found["updated"])
    return Release(name, namespace, int(found["revision"]), found["status"], chart_version, updated)
