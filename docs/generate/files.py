"""Page of the files that commands write."""

from collections.abc import Iterator, Mapping

from docs.generate.markdown import code, page, sentence, table

from gumshoe.artifacts.manifest import STORE_FILES
from gumshoe.documents.schema import INDEX_FILES as DOCUMENT_INDEX_FILES
from gumshoe.evaluation.results import EVALUATION_FILES
from gumshoe.mail.schema import INDEX_FILES as MAIL_INDEX_FILES
from gumshoe.training.models.base_model import ADAPTER_FILES
from gumshoe.training.run_spec import RUN_FILES
from gumshoe.training.sft.warm_start import WARM_START_FILES


def render_files() -> str:
    """Return the page."""
    return page(
        "Files",
        "## A training run",
        "`gumshoe train` writes to the directory `--out`. Default: `outputs/grpo_MODE`.",
        _render(RUN_FILES),
        "## An adapter",
        "The directories with an adapter in a run, the output of `gumshoe adapter create` and `gumshoe warm-start`, "
        "and published adapters contain:",
        _render(ADAPTER_FILES),
        "`gumshoe warm-start` adds:",
        _render(WARM_START_FILES),
        "## An evaluation",
        "`gumshoe evaluate` writes to the directory `--out`.",
        _render(EVALUATION_FILES),
        "## An index of mail",
        "`gumshoe mail index` writes to the directory `--out`. The index appears when it is complete. Its segments "
        "never change; `--into` adds one.",
        _render(MAIL_INDEX_FILES),
        "## An index of documents",
        "`gumshoe documents index` writes to the directory `--out`. The index appears when it is complete, and never "
        "changes.",
        _render(DOCUMENT_INDEX_FILES),
        "## A store",
        "`gumshoe artifacts publish` and pipelines write to a store, which is a directory or an S3 prefix.",
        _render(STORE_FILES),
    )


def _render(files: Mapping[str, str]) -> Iterator[str]:
    rows = ((", ".join(map(code, names.split(", "))), sentence(text)) for names, text in files.items())
    return table(("file", "content"), rows)
