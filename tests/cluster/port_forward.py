"""Forward a port of a fake pod, as the Kubernetes API does it over a WebSocket.

Each message begins with the number of a channel: 0 for data and 1 for errors of the only port. The server first sends
the port on both. https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go
"""

import base64
import hashlib
import socket
import struct
from collections.abc import Iterator
from io import BufferedIOBase

from tests.http_server import Dialogue

PROTOCOL = "v4.channel.k8s.io"
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
_BINARY, _CLOSE = 2, 8  # opcodes
_DATA, _ERROR = b"\0", b"\1"


def forward_port(key: str, port: int, address: tuple[str, int] | None) -> Dialogue:
    """Return what forwards a port to an address. Without one, nothing listens on the port in the pod."""

    def talk(read: BufferedIOBase, write: BufferedIOBase) -> None:
        accept = base64.b64encode(hashlib.sha1(f"{key}{_MAGIC}".encode()).digest()).decode()
        head = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        head += [f"Sec-WebSocket-Accept: {accept}", f"Sec-WebSocket-Protocol: {PROTOCOL}", "", ""]
        write.write("\r\n".join(head).encode())
        for channel in (_DATA, _ERROR):
            _send(write, channel + struct.pack("<H", port))
        if address is None:
            _send(write, _ERROR + b"connection refused")
        else:
            with socket.create_connection(address) as pod:
                pod.sendall(next(_receive(read)))
                while data := pod.recv(1000):
                    _send(write, _DATA + data)
        _send(write, b"", _CLOSE)

    return talk


def _send(write: BufferedIOBase, data: bytes, opcode: int = _BINARY) -> None:
    size = bytes([len(data)]) if len(data) < 126 else struct.pack(">BH", 126, len(data))
    write.write(bytes([0x80 | opcode]) + size + data)
    write.flush()


def _receive(read: BufferedIOBase) -> Iterator[bytes]:
    """Yield the data of each message of the client until it closes."""
    while True:
        opcode, size = read.read(2)
        size &= 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", read.read(2))
        mask, data = read.read(4), read.read(size)
        if opcode & 0x0F == _CLOSE:
            return
        yield bytes(each ^ mask[place % 4] for place, each in enumerate(data))[1:]
