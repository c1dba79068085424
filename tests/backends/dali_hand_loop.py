"""A hand-written loop over images: python dali_hand_loop.py FOLDER WORKERS."""

from __future__ import annotations

import sys
from typing import Any

import torch
from nvidia.dali import fn, types

import resumable
from resumable.backends.dali import source


def augment(raw: Any, label: Any, u: Any) -> tuple[Any, Any]:
    image = fn.resize(fn.decoders.image(raw), size=(8, 8))
    image = fn.flip(image, horizontal=fn.cast(u[0] < 0.5, dtype=types.INT32))
    return fn.cast(image, dtype=types.FLOAT) * (0.5 + u[1]) / 255, label


def main(folder: str, workers: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    made = source(folder, pipeline=augment, uniforms=2, num_threads=1, py_num_workers=workers)
    loader = resumable.wrap(made, batch_size=4, shuffle=True, seed=3, tail="carry")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.3), torch.nn.Linear(192, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    store, step = resumable.CheckpointStore("checkpoints", keep=2), 0

    if (saved := store.latest()) is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        resumable.rng.load_state_dict(saved["rng"])
        step = saved["step"]

    def save() -> None:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        store.save(step, {**content, "loader": loader.state_dict(), "rng": resumable.rng.state_dict()})

    for epoch in loader.epochs(2):
        for batch in epoch:
            optimizer.zero_grad()
            target = batch["label"].flatten().long()
            loss = torch.nn.functional.cross_entropy(model(batch["data"]), target)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            step += 1
            sys.stdout.write(f"{step}\n")
            sys.stdout.flush()
            if step % 3 == 0:
                save()
    save()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
