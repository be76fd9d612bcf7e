"""The fields of an `adapter_config.json` that are read, with their types. Another program may have written the file."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _check_patterns(patterns: dict[str, Any]) -> dict[str, Any]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{pattern[:60]!r} is not a pattern: {error}") from None
    return patterns


Rank = Annotated[int, Field(ge=1, le=1 << 20)]
RankPattern = Annotated[dict[str, Rank], AfterValidator(_check_patterns)]
AlphaPattern = Annotated[dict[str, float], AfterValidator(_check_patterns)]


class AdapterShape(BaseModel):
    """Rank, modules and base model of a LoRA adapter. Other fields of the file are not checked."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    r: Rank
    lora_alpha: float = 8
    rank_pattern: RankPattern | None = None
    alpha_pattern: AlphaPattern | None = None
    target_modules: list[str] | str | None = None
    target_parameters: list[str] | None = None
    modules_to_save: list[str] | None = None
    layers_to_transform: list[int] | int | None = None
    base_model_name_or_path: str | None = None
    bias: str = "none"
