"""An OCI registry on a real socket: blobs in one piece or several, and manifests by tag and digest."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.http_server import run_server

_ROUTE = re.compile(r"/v2/(?P<name>.+)/(?P<kind>blobs/uploads|blobs|manifests)/(?P<reference>[^/]*)")


@dataclass
class FakeRegistry:
    """Content of the registry."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    """Blobs by digest."""
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Media type and content of manifests, by `NAME:TAG` and `NAME@DIGEST`."""
    uploads: dict[str, bytes] = field(default_factory=dict)
    """Unfinished blobs."""
    password: str = ""
    """Value of the header Authorization. Requests without it get 401, if it is set."""
    host: str = ""

    def find_manifest(self, name: str, reference: str) -> tuple[str, bytes] | None:
        """Return a manifest by tag or digest."""
        return self.manifests.get(f"{name}@{reference}" if reference.startswith("sha256:") else f"{name}:{reference}")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: FakeRegistry

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        found = _ROUTE.fullmatch(url.path)
        if self.registry.password and self.headers.get("Authorization") != self.registry.password:
            self._refuse(401, "UNAUTHORIZED", **{"WWW-Authenticate": 'Basic realm="registry"'})
        elif found is None:
            self._refuse(404, "NAME_UNKNOWN")
        else:
            digest = parse_qs(url.query).get("digest", [""])[0]
            self._dispatch(found["kind"], found["name"], found["reference"], body, digest)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _respond  # noqa: N815 - http.server's names

    def _dispatch(self, kind: str, name: str, reference: str, body: bytes, digest: str) -> None:
        match self.command, kind:
            case "POST", "blobs/uploads":
                upload = str(len(self.registry.uploads))
                self.registry.uploads[upload] = b""
                self._send(202, Location=f"/v2/{name}/blobs/uploads/{upload}")
            case "PATCH", "blobs/uploads":
                self.registry.uploads[reference] += body
                self._send(202, Location=self.path)
            case "PUT", "blobs/uploads":
                self._put_blob(name, self.registry.uploads.pop(reference) + body, digest)
            case "PUT", "manifests":
                self._put_manifest(name, reference, body)
            case "GET" | "HEAD", "blobs" if reference in self.registry.blobs:
                self._send(200, self.registry.blobs[reference])
            case "GET" | "HEAD", "manifests" if manifest := self.registry.find_manifest(name, reference):
                headers = {"Content-Type": manifest[0], "Docker-Content-Digest": digest_of(manifest[1])}
                self._send(200, manifest[1], **headers)
            case _:
                self._refuse(404, "BLOB_UNKNOWN" if kind == "blobs" else "MANIFEST_UNKNOWN")

    def _put_blob(self, name: str, content: bytes, digest: str) -> None:
        if digest_of(content) != digest:
            self._refuse(400, "DIGEST_INVALID")
        else:
            self.registry.blobs[digest] = content
            self._send(201, Location=f"/v2/{name}/blobs/{digest}")

    def _put_manifest(self, name: str, reference: str, body: bytes) -> None:
        manifest, digest = json.loads(body), digest_of(body)
        if any(each["digest"] not in self.registry.blobs for each in [manifest["config"], *manifest["layers"]]):
            self._refuse(404, "MANIFEST_BLOB_UNKNOWN")
            return
        self.registry.manifests[f"{name}@{digest}"] = self.headers["Content-Type"], body
        if not reference.startswith("sha256:"):
            self.registry.manifests[f"{name}:{reference}"] = self.headers["Content-Type"], body
        self._send(201, b"", Location=f"/v2/{name}/manifests/{digest}", **{"Docker-Content-Digest": digest})

    def _refuse(self, status: int, code: str, **headers: str) -> None:
        self._send(status, json.dumps({"errors": [{"code": code, "message": code.lower()}]}).encode(), **headers)

    def _send(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for header, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore clients that close a connection."""


@contextmanager
def run_registry() -> Iterator[FakeRegistry]:
    """Run a registry without TLS while the block runs."""
    registry = FakeRegistry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    with run_server(_Server(("127.0.0.1", 0), handler)) as address:
        registry.host = address.removeprefix("http://")
        yield registry
