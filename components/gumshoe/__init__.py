"""Gumshoe trains search agents with reinforcement learning and puts them into service."""

import logging

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on a CPU it warns about unused kernels
