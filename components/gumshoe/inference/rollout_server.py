"""A vLLM server for rollouts, in this process's place: `python -m gumshoe.inference.rollout_server --model MODEL`.

It is started as `VLLMServer` starts its own, but for its address, which other machines reach. What is not known here is
passed on to vLLM, behind everything else.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import GumshoeError
from gumshoe.inference.policy_names import TINY
from gumshoe.inference.vllm_server import Launch, ServerOptions, launch_of, lora_rank_slot

_HOST = "0.0.0.0"  # noqa: S104 - a pod's network policy says who may come in


def launch(arguments: Sequence[str]) -> Launch:
    """What starts the server that is asked for.

    Raises:
        UsageError: vLLM is not installed, or there is no such model.
    """
    defaults = ServerOptions()
    parser = argparse.ArgumentParser("python -m gumshoe.inference.rollout_server", allow_abbrev=False)
    parser.add_argument("--model", required=True, help="a model's directory, its name on the hub, or `tiny`")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len, help="most tokens of a request")
    parser.add_argument("--max-lora-rank", type=int, default=defaults.max_lora_rank, help="highest rank of an adapter")
    parser.add_argument("--dtype", default=defaults.dtype, help="of the weights, as vLLM takes it")
    known, others = parser.parse_known_args(arguments)
    options = ServerOptions(
        max_model_len=known.max_model_len,
        max_lora_rank=lora_rank_slot(known.max_lora_rank),
        dtype=known.dtype,
        arguments=tuple(others),
    )
    place = TINY if known.model == "tiny" else known.model
    return launch_of(find_model(place, "config.json").name, options, _HOST, known.port)


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Become the server."""
    try:
        found = launch(arguments)
    except GumshoeError as error:
        sys.stderr.write(f"error: {error.message_with_code}\n")
        sys.exit(error.exit_status)
    os.execve(found.command[0], found.command, found.environment)  # noqa: S606 - vLLM gets the pod's signals itself


if __name__ == "__main__":
    main()
