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
        str, typer.Argument(metavar="URI", help="Store of the adapters: the run's setting `rollouts.handover`.")
    ],
    server: Annotated[str, typer.Option(metavar="URL", help="Address of vLLM, e.g. http://127.0.0.1:8000.")],
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for adapters. vLLM must see it at the same path.")
    ],
    port: Annotated[int, typer.Option(help="Port of /status, /healthz, /readyz and /metrics.")] = LOADER_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104 - probes come from outside
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two checks of the store.")] = 1.0,
) -> None:
    """Make a vLLM server serve the newest adapter of a store, until this process is stopped.

    Each adapter is verified before vLLM loads it. Failures are retried without limit; meanwhile vLLM keeps serving
    the adapters it has.
    """
    import logging
    import os
    import signal
    import threading

    from gumshoe.artifacts.storage import lock_directory, make_writable_directory
    from gumshoe.cluster.adapter_loader import AdapterLoader, PollInterval
    from gumshoe.cluster.adapter_loader_http import serve_status

    # As PID 1 of a container it would ignore SIGTERM. Exiting at any point is safe.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with lock_directory(make_writable_directory(str(directory)), None) as lock:
        if lock is None:
            raise UsageError(
                "loader.directory-in-use",
                f"another adapter loader uses {directory}; give each vLLM server its own --directory",
            )
        with (
            AdapterLoader(uri, server, directory, PollInterval(interval=every)) as loader,
            serve_status(loader, host, port),
        ):
            loader.run(threading.Event())
