"""`gumshoe adapter-loader`."""

from pathlib import Path
from typing import Annotated

import typer

from gumshoe.artifacts.adapter_layout import LOADER_PORT, SERVER_PORT
from gumshoe.errors import UsageError

app = typer.Typer(add_completion=False)


@app.command()
def adapter_loader(
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="Store of the adapters: the run's setting `rollouts.handover`.")
    ],
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for adapters. vLLM must see it at the same path.")
    ],
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of vLLM. Default: port 8000 of this pod or machine.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of /status, /healthz, /readyz and /metrics.")] = LOADER_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104 - probes come from outside
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two checks of the store.")] = 1.0,
) -> None:
    """Make a vLLM server serve the newest adapter of a store, until this process is stopped.

    Each adapter is verified before vLLM loads it. Failures are retried without limit; meanwhile vLLM keeps serving
    the adapters it has. VLLM_API_KEY is the key of vLLM, if it has one.
    """
    import logging
    import os
    import signal
    import threading

    from gumshoe.artifacts.storage import lock_directory, make_writable_directory
    from gumshoe.cluster.adapter_loader import AdapterLoader, PollInterval
    from gumshoe.cluster.adapter_loader_http import serve_status
    from gumshoe.inference.http_options import pod_host

    # As PID 1 of a container it would ignore SIGTERM. Exiting at any point is safe.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    address = server or f"http://{pod_host() or '127.0.0.1'}:{SERVER_PORT}"
    with lock_directory(make_writable_directory(str(directory)), None) as lock:
        if lock is None:
            raise UsageError(
                "loader.directory-in-use",
                f"another adapter loader uses {directory}; give each vLLM server its own --directory",
            )
        with (
            AdapterLoader(uri, address, directory, PollInterval(interval=every)) as loader,
            serve_status(loader, host, port),
        ):
            loader.run(threading.Event())
