"""`gumshoe adapter-loader`."""

from pathlib import Path
from typing import Annotated

import typer

from gumshoe.artifacts.adapter_layout import LOADER_PORT
from gumshoe.errors import UsageError

app = typer.Typer(add_completion=False)


@app.command()
def adapter_loader(
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="Where adapters are handed over, as the run's `rollouts.handover`.")
    ],
    server: Annotated[str, typer.Option(help="The address of vLLM, as http://127.0.0.1:8000.")],
    directory: Annotated[Path, typer.Option(help="Where adapters are kept, as vLLM sees it too.")],
    port: Annotated[int, typer.Option(help="Of /status, /healthz, /readyz and /metrics.")] = LOADER_PORT,
    host: Annotated[str, typer.Option(help="The address to answer at.")] = "0.0.0.0",  # noqa: S104 - probes come from outside
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks at the store.")] = 1.0,
) -> None:
    """Have a vLLM server serve the newest adapter of a store, until this is ended.

    Each adapter is verified before vLLM is told of it. What fails is tried again for as long as it takes;
    meanwhile vLLM serves what it has.
    """
    import logging
    import os
    import signal
    import threading

    from gumshoe.artifacts.storage import directory_lock, writable_directory
    from gumshoe.cluster.adapter_loader import AdapterLoader, PollInterval
    from gumshoe.cluster.adapter_loader_http import pages

    # As the first process of a container, which no signal ends by itself; and nothing is lost at any instant.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    with directory_lock(writable_directory(str(directory)), None) as lock:
        if lock is None:
            raise UsageError(
                "loader.directory-in-use",
                f"another adapter loader uses {directory}; give each vLLM server its own --directory",
            )
        with AdapterLoader(uri, server, directory, PollInterval(look=every)) as loader, pages(loader, host, port):
            loader.follow(threading.Event())
