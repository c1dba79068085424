"""Event files in the shape of TensorBoard's: a file per launch, with its time, host and process in the name."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from zlib import crc32


class SummaryWriter:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.0"
        self.file = (folder / name).open("wb")
        self.write(b"brain.Event:2")

    def write(self, record: bytes) -> None:
        header = struct.pack("<Qd", len(record), time.time())
        self.file.write(header + struct.pack("<I", crc32(header)) + record + struct.pack("<I", crc32(record)))
        self.file.flush()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.write(f"{tag} {step} {value}".encode())
