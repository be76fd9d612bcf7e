"""Train as one node of several: fetch the inputs from the store, and train. The first node publishes the result.

Started as `python -m gumshoe.training.node_main REQUEST`, with the request in JSON. The torch runtime of Kubeflow
Trainer sets PET_* variables with the rank of this node. All names in the store come from the request alone, so that a
restarted node finds them.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gumshoe.artifacts.store import Store
from gumshoe.cluster.pod_environment import set_agent_keys
from gumshoe.errors import GumshoeError
from gumshoe.inference.vllm_server import ServerError, check_server, server_address
from gumshoe.terminal import err, printable
from gumshoe.training.launch.distributed_env import DistributedEnv
from gumshoe.training.launch.supervisor import exit_on_sigterm
from gumshoe.training.run_directory import STEP_VARIABLE
from gumshoe.training.train_request import TrainRequest
from gumshoe.training.training_step import TrainResult, load_result, run_training

_SERVERS = 45 * 60.0  # seconds
_LOOK = 5.0  # seconds
_ADAPTER, _PAGE, _SUMMARY = "adapter", "plots.html", "result.json"


def fetch_result(request: TrainRequest, directory: Path) -> TrainResult | None:
    """Return the result of a published request, fetched into a directory; None if the training has not finished.

    Raises:
        StorageError, UnavailableError, CorruptArtifactError: the result cannot be fetched.
    """
    store = Store(request.checkpoints)
    if store.find(request.result) is None:
        return None
    store.fetch(request.result, directory)
    summary = json.loads((directory / _SUMMARY).read_bytes())
    return TrainResult(directory, directory / _ADAPTER, directory / _PAGE, summary["facts"], summary["numbers"])


def run_node(request: TrainRequest) -> None:
    """Train as one node of several, to the end. `request` is a published one.

    Raises:
        UsageError: the request cannot be carried out.
        UnavailableError: the training was interrupted; the same request continues it.
    """
    store, is_first = Store(request.checkpoints), not DistributedEnv.from_environ().rank
    if store.find(request.result) is not None:
        err.print("This training has finished; there is nothing to continue.")
        return
    with tempfile.TemporaryDirectory(prefix="gumshoe-node-") as made:
        scratch = Path(made)
        with exit_on_sigterm():
            here = request.fetch(scratch)
            _wait_for_servers(here.resolve().rollouts.servers)
        directory = run_training(here)
        if is_first:
            kind, _, version = request.result.partition("/")
            _write_result(load_result(directory), scratch / kind)
            store.publish(scratch / kind, kind, version, latest=False)
        shutil.rmtree(directory)


def _write_result(found: TrainResult, directory: Path) -> None:
    """Write what `fetch_result` reads."""
    shutil.copytree(found.adapter, directory / _ADAPTER)
    shutil.copyfile(found.plots, directory / _PAGE)
    summary = {"facts": found.facts, "numbers": found.numbers}
    (directory / _SUMMARY).write_text(json.dumps(summary), encoding="utf-8")


def _wait_for_servers(urls: Sequence[str]) -> None:
    """Wait until the vLLM servers, which start together with this node, have loaded their model.

    Raises:
        UnavailableError: a server does not answer in time.
    """
    until, waits = time.monotonic() + _SERVERS, ""
    for url in urls:
        while True:
            try:
                check_server(server_address(url), context=0)
                break
            except ServerError as error:
                if time.monotonic() > until:
                    raise
                if waits != url:
                    waits = url
                    err.print(f"Waiting for a vLLM server ({printable(error)})", soft_wrap=True)
            time.sleep(_LOOK)


def main() -> None:
    """Train as one node with the request on the command line, and exit with a status."""
    set_agent_keys(os.environ)
    os.environ[STEP_VARIABLE] = "1"
    try:
        run_node(TrainRequest.model_validate_json(sys.argv[1]))
    except GumshoeError as error:
        err.print(f"[bold red]error:[/] {printable(error.message_with_code)}", soft_wrap=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
