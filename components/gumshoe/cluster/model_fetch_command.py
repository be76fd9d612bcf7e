"""`gumshoe model-fetch`."""

from pathlib import Path
from typing import Annotated

import typer

from gumshoe.errors import UsageError
from gumshoe.terminal import out

app = typer.Typer(add_completion=False)


@app.command(epilog="gumshoe model-fetch hf://Qwen/Qwen2.5-7B-Instruct=models/base")
def model_fetch(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="URI=DIR",
            help="Where to read files, and the directory to write them to. URIs: hf://OWNER/NAME[:REVISION] or "
            "s3://BUCKET/PREFIX.",
        ),
    ],
) -> None:
    """Fetch models and adapters, and verify their digests: those of the hub, or of an artifact's manifest.

    The chart runs this before vLLM. A token for private and gated repositories is read from HF_TOKEN. S3 credentials
    come from the usual AWS settings; AWS_ENDPOINT_URL selects another server.
    """
    import os
    import signal

    from gumshoe.cluster.model_fetch import fetch_model_files
    from gumshoe.signals import handle_signals

    pairs = [source.rpartition("=") for source in sources]
    if wrong := [
        source for source, (uri, _, directory) in zip(sources, pairs, strict=True) if not uri or not directory
    ]:
        raise UsageError("model-fetch.invalid-argument", f"arguments must be URI=DIR, got {wrong[0]!r}")
    # As PID 1 of a container it would ignore SIGTERM. A fetch can be interrupted at any point.
    with handle_signals(lambda *_: os._exit(128 + signal.SIGTERM), signal.SIGTERM):
        for uri, _, directory in pairs:
            fetched = fetch_model_files(uri, Path(directory))
            out.print(f"Fetched {uri}: {fetched.files} files, {fetched.verified} verified", soft_wrap=True)
