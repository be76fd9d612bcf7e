"""Replace this process by a vLLM server: `python -m gumshoe.inference.rollout_server --model MODEL`.

The server starts with the same arguments as that of `VLLMServer`. It listens on the address of its pod (POD_IP), or
else on loopback. On any other address than loopback, a key (VLLM_API_KEY) is required, because a client that can load
adapters can change what the trainers learn from. Unknown arguments are passed on to vLLM, after all others.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gumshoe.artifacts.adapter_layout import round_up_lora_rank
from gumshoe.artifacts.hub import find_model
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.inference.http_options import key_headers
from gumshoe.inference.policy_names import TINY
from gumshoe.inference.vllm_access import KEY_VARIABLE
from gumshoe.inference.vllm_server import LaunchCommand, ServerOptions, build_launch_command

_LOOPBACK = "127.0.0.1"
_SHUTDOWN_SECONDS = 15  # of the 30 until the pod is killed; the preStop hook takes 5


def build_launch(arguments: Sequence[str]) -> LaunchCommand:
    """Return the command that starts the server.

    Raises:
        UsageError: if vLLM is not installed, the model does not exist, or a key is needed and not set.
    """
    defaults = ServerOptions()
    parser = argparse.ArgumentParser("python -m gumshoe.inference.rollout_server", allow_abbrev=False)
    parser.add_argument("--model", required=True, help="directory of a model, or its name, e.g. on the hub")
    host = os.environ.get("POD_IP") or _LOOPBACK
    parser.add_argument("--host", default=host, help="address to listen on; VLLM_API_KEY is required unless loopback")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len, help="maximum tokens per request")
    parser.add_argument("--max-lora-rank", type=int, default=defaults.max_lora_rank, help="maximum rank of an adapter")
    parser.add_argument(
        "--adapters", type=Path, help="directory that the adapters are loaded from, each with a manifest"
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=int,
        default=_SHUTDOWN_SECONDS,
        help="seconds for running requests to finish when the server is stopped",
    )
    parser.add_argument("--dtype", default=defaults.dtype, help="data type of the weights, e.g. bfloat16")
    known, others = parser.parse_known_args(arguments)
    _check_key(known.host)
    options = ServerOptions(
        max_model_len=known.max_model_len,
        max_lora_rank=round_up_lora_rank(known.max_lora_rank),
        dtype=known.dtype,
        arguments=("--shutdown-timeout", str(known.shutdown_timeout), *others),
        adapter_directories=None if known.adapters is None else (known.adapters,),
        verify_adapters=known.adapters is not None,
    )
    place = TINY if known.model == "tiny" else known.model
    return build_launch_command(find_model(place, "config.json"), options, known.host, known.port)


def _check_key(host: str) -> None:
    """Check that a server on another address than loopback has a key.

    Raises:
        UsageError: if it has none, or a malformed one.
    """
    if not key_headers() and host not in (_LOOPBACK, "::1", "localhost"):
        raise UsageError(
            "inference.server-key-missing",
            f"anyone who reaches {host} could load adapters into the server; set {KEY_VARIABLE} to a random key "
            "for the server and its clients, or use --host 127.0.0.1",
        )


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Replace this process by the server."""
    try:
        found = build_launch(arguments)
    except GumshoeError as error:
        sys.stderr.write(f"error: {error.message_with_code}\n")
        sys.exit(error.exit_status)
    os.execve(found.command[0], found.command, found.environment)  # noqa: S606 - vLLM receives the pod's signals itself


if __name__ == "__main__":
    main()
