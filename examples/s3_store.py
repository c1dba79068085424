"""Checkpoints in a bucket: saved in the background, loaded by a new process, and a server that hangs.

Run it with `python examples/s3_store.py`; it needs torch, s3fs and `moto[server]`, an S3 server that it starts itself.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import s3fs
import torch
from moto.server import ThreadedMotoServer

from resumable import CheckpointStore
from resumable.errors import CheckpointTimeoutError

ROOT = "s3://checkpoints/run"


def options(host: str, port: int) -> dict[str, Any]:
    """Return s3fs options for a server on this machine; AWS itself needs none."""
    return {"client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}}


def main() -> None:
    """Train, restart, and try a server that never answers."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    given = options(*server.get_host_and_port())
    s3fs.S3FileSystem(**given).call_s3("create_bucket", Bucket="checkpoints")

    weight = torch.zeros(3)
    with CheckpointStore(ROOT, keep=2, keep_every=50, storage_options=given) as store:
        for step in range(1, 101):
            weight += 1  # in place: the store saves a copy
            if step % 10 == 0:
                store.save(step, {"step": step, "weight": weight}, background=True)
    print(f"saved: {store.steps()}")

    last = CheckpointStore(ROOT, storage_options=given).latest()
    print(f"a restart resumes from step {last and last['step']} with {last and last['weight'].tolist()}")

    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        try:
            CheckpointStore(ROOT, timeout=1, storage_options=options(*silent.getsockname()))
        except CheckpointTimeoutError as error:
            print(f"CheckpointTimeoutError: {error}")
    server.stop()


if __name__ == "__main__":
    main()
