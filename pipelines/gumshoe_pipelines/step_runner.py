"""Run a step of a pipeline: prepare its environment, and run it again in the same pod if it fails for now.

Kubeflow's command of a step starts this module in place of Kubeflow's executor, whose name and arguments follow. Each
attempt is a process of its own. It is repeated only after exit status 75 (EX_TEMPFAIL); what it left in the pod and in
the store is continued. Kubeflow's own retries are for pods that are lost.
"""

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from gumshoe.cluster.pod_environment import CA_VARIABLES, find_ca_file, set_agent_keys, set_proxy
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.network import share_ca_bundle
from gumshoe.redaction import print_traceback
from gumshoe.signals import exit_on_signals, handle_signals
from gumshoe.training.run_directory import STEP_VARIABLE

ATTEMPTS = 4
"""Maximum number of attempts in a pod."""
PAUSE_VARIABLE = "GUMSHOE_STEP_PAUSE"
"""Environment variable with the seconds before the second attempt. Each later pause is twice as long."""
SECONDS_VARIABLE = "GUMSHOE_STEP_SECONDS"
"""Environment variable with the seconds after which Kubernetes ends the pod."""
QUEUED_VARIABLE = "GUMSHOE_STEP_QUEUED"
"""Environment variable of steps with a Kueue queue: `true` if Kueue has admitted the pod."""
_PAUSE = 60.0  # seconds
_LEAST = 0.1  # part of the pod's time that must be left for another attempt
_ENDS = "GUMSHOE_STEP_ENDS"  # environment variable of attempts: when the pod ends, in seconds since 1970
_TICK = 0.5  # seconds between checks for a signal during a pause


class _Attempts:
    """The attempts of a step. A signal ends the current one, and there is no other after it.

    `seconds` is the time limit of the pod.
    """

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self._command = command
        self._last_start = time.time() + (1 - _LEAST) * seconds
        self._environment = {**os.environ, STEP_VARIABLE: "1", _ENDS: str(time.time() + seconds)}
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self, pause: float) -> int:
        """Run the command until it ends with another exit status than 75, or too often. Return its last status."""
        status = UnavailableError.exit_status
        with handle_signals(self._stop, signal.SIGTERM, signal.SIGINT):
            for number in range(1, ATTEMPTS + 1):
                self._child = subprocess.Popen(self._command, env=self._environment)  # noqa: S603 - our own interpreter and module
                if self._is_stopping:  # asked before the child was known
                    self._child.terminate()
                status = self._child.wait()
                is_last = number == ATTEMPTS or self._is_stopping or time.time() + pause > self._last_start
                if status != UnavailableError.exit_status or is_last:
                    break
                sys.stdout.write(f"Attempt {number} of {ATTEMPTS} failed; the next one begins in {pause:g} s\n")
                sys.stdout.flush()
                if not self._wait(pause):
                    break
                pause *= 2
        return status if status >= 0 else 128 - status  # as shells report signals

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._is_stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def _wait(self, seconds: float) -> bool:
        """Wait. Return False if the step was asked to end meanwhile."""
        until = time.monotonic() + seconds
        while not self._is_stopping and (rest := until - time.monotonic()) > 0:
            time.sleep(min(rest, _TICK))
        return not self._is_stopping


def prepare_environment() -> None:
    """Set certificates, proxy and keys of agents of the namespace for this process and its children.

    Raises:
        UsageError: if the certificates cannot be read, or Kueue did not see the pod of a step that has a queue.
    """
    if os.environ.get(QUEUED_VARIABLE, "true") != "true":
        raise UsageError(
            "pipelines.not-queued",
            "the pod of this step has a queue, but started without Kueue: its label kueue.x-k8s.io/managed is missing; "
            "enable Kueue's integration `pod` for this namespace, or leave queue out",
        )
    if found := find_ca_file():
        share_ca_bundle(found)
        os.environ.update(dict.fromkeys(CA_VARIABLES, str(found)))
    set_proxy(os.environ)
    set_agent_keys(os.environ)


def count_seconds_left() -> float:
    """Return the seconds until Kubernetes ends the pod of this step; infinity without a time limit."""
    return float(os.environ.get(_ENDS) or "inf") - time.time()


def run_once() -> None:
    """Run the module that `sys.argv` names. Exit with the exit status of the error that it raises, if it has one."""
    sys.argv = sys.argv[1:]
    try:
        with exit_on_signals():
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except GumshoeError as error:
        print_traceback(type(error), error, error.__traceback__)
        sys.exit(error.exit_status)


def main(arguments: Sequence[str]) -> int:
    """Run a module with its arguments as often as necessary, and return its exit status."""
    try:
        prepare_environment()
    except GumshoeError as error:
        sys.stderr.write(f"{type(error).__module__}.{type(error).__name__}: {error.message_with_code}\n")
        return error.exit_status
    once = "from gumshoe_pipelines.step_runner import run_once; run_once()"
    command = (sys.executable, "-c", once, *arguments)
    attempts = _Attempts(command, float(os.environ.get(SECONDS_VARIABLE) or "inf"))
    return attempts.run(float(os.environ.get(PAUSE_VARIABLE) or _PAUSE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
