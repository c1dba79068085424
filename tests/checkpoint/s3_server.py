"""moto's S3 server in a process of its own, and a proxy before it that cuts, refuses and hangs at a chosen request."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_REQUEST = re.compile(rb"(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1.1\r\n")


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def moto_server() -> Iterator[int]:
    """Start the server, and give its port."""
    port = _port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "moto's server ended"
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


class Proxy:
    """Passes connections on to a server, until a fault.

    A fault begins at the request `fail_at`, or when `most` bytes of requests are through, and lasts until `heal`:

    - `cut`: the connection is closed, and the request lost;
    - `late`: the request is done, and the connection closed in place of an answer;
    - `hang`: the request is swallowed, and the connection stays open;
    - `refuse`: like `cut`, and new connections are closed at once.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.heal()
        self._start(self._accept)

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def heal(self) -> None:
        """Pass everything on from now on, and count from 1."""
        self.fault, self.fail_at, self.most = "", 0, 0
        self.seen: list[str] = []
        self.through = 0
        self.fired = False

    def plan(self, fault: str, fail_at: int = 0, most: int = 0) -> None:
        """Begin to fail at a request, or after so many bytes."""
        self.heal()
        self.fault, self.fail_at, self.most = fault, fail_at, most

    def close(self) -> None:
        """End all connections."""
        _shut(self._listener, *self._open)
        self._threads[0].join(10)
        _shut(*self._open)
        for thread in self._threads[1:]:
            thread.join(10)
        for one in (self._listener, *self._open):
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                if self.fired and self.fault == "refuse":
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._open.append(server)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                state: dict[str, bool] = {}
                for pump in (self._requests, self._answers):
                    self._start(pump, client, server, state)

    def _requests(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if found := _REQUEST.match(data):
                    self.seen.append(f"{found[1].decode()} {found[2].decode()}")
                if self.fault and not self.fired:
                    self.fired = bool(self.fail_at and len(self.seen) >= self.fail_at)
                    if self.most and self.through + len(data) > self.most:
                        server.sendall(data[: self.most - self.through])
                        self.fired = True
                if self.fired and self.fault == "hang":
                    continue
                if self.fired and self.fault in ("cut", "refuse"):
                    # A reset: after a plain end, a client that still sends would wait until somebody reads it.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()
                    break
                if self.fired:
                    state["late"] = True
                self.through += len(data)
                server.sendall(data)
        _shut(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if state.get("late") and not data.startswith(b"HTTP/1.1 100"):
                    break
                client.sendall(data)
        _shut(client, server)


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def options(port: int, **config: Any) -> dict[str, Any]:
    """Give the options of s3fs for a server on this machine; each file system has connections of its own."""
    return {
        "key": "testing",
        "secret": "testing",  # moto takes any
        "skip_instance_cache": True,
        "default_block_size": 5 << 20,
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"},
        "config_kwargs": config,
    }
