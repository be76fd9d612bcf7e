"""moto's S3 server with atomic conditional writes, as in S3; moto itself checks the condition and writes separately.

python -m tests.s3_server -H 127.0.0.1 -p PORT
"""

import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_put, _writing = S3Response.put_object, threading.Lock()


def _put_atomically(self: S3Response) -> Any:
    with _writing:
        return _put(self)


if __name__ == "__main__":
    S3Response.put_object = _put_atomically  # type: ignore[method-assign]
    main()
