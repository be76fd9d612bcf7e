"""Replace this process by a vLLM server: `python -m gumshoe.inference.rollout_server --model MODEL`.

The server starts with the same arguments as that of `VLLMServer`, but listens on all addresses. Unknown arguments are
passed on to vLLM, after all others.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import GumshoeError
from gumshoe.inference.policy_names import TINY
from gumshoe.inference.vllm_server import LaunchCommand, ServerOptions, build_launch_command, round_up_lora_rank

_HOST = "0.0.0.0"  # noqa: S104 - the pod's network policy limits access


def build_launch(arguments: Sequence[str]) -> LaunchCommand:
    """Return the command that starts the server.

    Raises:
        UsageError: if vLLM is not installed, or the model does not exist.
    """
    defaults = ServerOptions()
    parser = argparse.ArgumentParser("python -m gumshoe.inference.rollout_server", allow_abbrev=False)
    parser.add_argument("--model", required=True, help="directory of a model, or its name, e.g. on the hub")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len, help="maximum tokens per request")
    parser.add_argument("--max-lora-rank", type=int, default=defaults.max_lora_rank, help="maximum rank of an adapter")
    parser.add_argument("--dtype", default=defaults.dtype, help="data type of the weights, e.g. bfloat16")
    known, others = parser.parse_known_args(arguments)
    options = ServerOptions(
        max_model_len=known.max_model_len,
        max_lora_rank=round_up_lora_rank(known.max_lora_rank),
        dtype=known.dtype,
        arguments=tuple(others),
    )
    place = TINY if known.model == "tiny" else known.model
    return build_launch_command(find_model(place, "config.json").name, options, _HOST, known.port)


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
