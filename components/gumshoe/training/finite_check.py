"""Check that an optimizer step has not destroyed the weights."""

import math
from collections.abc import Mapping

from gumshoe.errors import GumshoeError
from gumshoe.training.run_directory import how_to_continue


def check_is_finite(step: int, logs: Mapping[str, float]) -> None:
    """Check the loss and the norm of the gradient in a trainer's numbers of a step, before it is saved.

    Both are the same in all processes, so that all of them raise. The norm may be missing.

    Raises:
        GumshoeError: one of them is not finite.
    """
    loss, norm = logs["loss"], logs.get("grad_norm")
    # DeepSpeed gives the norm -1 if it is not finite.
    if math.isfinite(loss) and (norm is None or (math.isfinite(norm) and norm >= 0)):
        return
    raise GumshoeError(
        "training.not-finite",
        f"the gradient of step {step} is not finite, so its weights are lost and were not saved: the loss is {loss:g}, "
        f"the norm of the gradient {'unknown' if norm is None else f'{norm:g}'}; {how_to_continue()} from the last "
        "checkpoint, and if it happens again, start a new run with a lower learning rate",
    )
