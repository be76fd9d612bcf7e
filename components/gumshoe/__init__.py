"""Gumshoe trains search agents with reinforcement learning and puts them into service."""

import logging
import os

from gumshoe import redaction

redaction.install()
os.environ.setdefault("DO_NOT_TRACK", "1")  # TRL and vLLM report each use to their makers; child processes inherit it
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on a CPU it warns about unused kernels
_CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "urllib3", "openai", "botocore", "boto3", "s3transfer")
for _client in _CLIENTS:
    logging.getLogger(_client).setLevel(logging.WARNING)  # at INFO they log every request, e.g. each turn of an episode
