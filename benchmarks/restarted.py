"""Start, go to a position, wait for the first batch: `python -m benchmarks.restarted SOURCE HOW FOLDER BEGAN`.

It prints when it finished each part, in seconds since BEGAN, as JSON. HOW is "alone" for the source without wrapping,
"save" to leave a state in FOLDER, or "resume" to resume from it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["MODULES", "main"]

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_BATCH, _STEPS = 64, 100
# The imports of a script for each source, before this package.
MODULES: dict[str, tuple[str, ...]] = {
    "list": (),
    "DataLoader": ("torch.utils.data",),
    "DataLoader, 2 workers": ("torch.utils.data",),
    "IterableDataset": ("torch.utils.data",),
    "Lightning": ("torch.utils.data", "pytorch_lightning"),
    "DALI": ("nvidia.dali.plugin.pytorch",),
    "FFCV": ("ffcv.loader",),
    "TFDS": (),
    "tf.data": ("tensorflow",),
    "mix": (),
}


def main(name: str, how: str, folder: str, began: str) -> dict[str, float]:
    """Run up to the first batch, and return when each part was done."""
    done = {"interpreter": time.time() - float(began)}
    for module in MODULES[name]:
        importlib.import_module(module)
    done["imports"] = time.time() - float(began)
    if how != "alone":
        importlib.import_module("resumable")
    done["import resumable"] = time.time() - float(began)
    source = _make(name, Path(folder))
    if name == "Lightning":
        _fit(source, how, Path(folder))
    else:
        _read(name, source, how, Path(folder, "state"))
    done["first batch"] = time.time() - float(began)
    return done


def _read(name: str, source: Any, how: str, path: Path) -> None:
    if how == "alone":
        next(iter(source))
        return
    import resumable  # noqa: PLC0415  # its time is measured

    loader = source if name == "mix" else resumable.wrap(source, **_OPTIONS.get(name, {}))
    if how == "resume":
        loader.load_state_dict(pickle.loads(path.read_bytes()))  # noqa: S301  # our own file
        next(iter(loader))
        return
    for _ in zip(range(_STEPS), loader, strict=False):
        pass
    path.write_bytes(pickle.dumps(loader.state_dict()))


_OPTIONS: dict[str, dict[str, Any]] = {
    "list": {"batch_size": _BATCH, "shuffle": True},
    "TFDS": {"batch_size": _BATCH, "shuffle": True},
}


def _make(name: str, folder: Path) -> Any:  # noqa: PLR0911  # a table of sources, each imported separately
    if name == "list":
        return list(range(100_000))
    if name.startswith("DataLoader") or name == "Lightning":
        from torch.utils.data import DataLoader  # noqa: PLC0415  # as above

        data: Any = [float(number) for number in range(100_000)]
        workers = 2 if name.endswith("workers") else 0
        return DataLoader(data, batch_size=_BATCH, shuffle=True, num_workers=workers)
    if name == "IterableDataset":
        return _stream()
    if name == "DALI":
        from benchmarks import tasks_dali  # noqa: PLC0415  # as above

        listed = folder / "list-100000.txt"
        if not listed.exists():
            tasks_dali.write_images(folder, pixels=32)
            tasks_dali.write_list(folder, 100_000)
        return tasks_dali.iterator(tasks_dali.decoding(str(folder), str(listed)))
    if name == "FFCV":
        from benchmarks import tasks_ffcv  # noqa: PLC0415  # as above

        return tasks_ffcv.loader("raw", 1, 10_000, 32)
    if name == "TFDS":
        from benchmarks import tasks_tfds  # noqa: PLC0415  # as above

        if not (folder / "tfrecord").exists():
            tasks_tfds.Written().write(str(folder), 12_800)
        return tasks_tfds.source(str(folder), "tfrecord")
    if name == "tf.data":
        from benchmarks import tasks_tfdata  # noqa: PLC0415  # as above

        return tasks_tfdata.PIPELINES["shuffle, then decode"](100_000, 256)
    import resumable  # noqa: PLC0415  # its time is measured

    sources = {letter: list(range(10_000)) for letter in "abc"}
    return resumable.wrap(resumable.mix(sources), batch_size=_BATCH)


def _stream() -> Any:
    from torch.utils.data import DataLoader, IterableDataset  # noqa: PLC0415  # as above

    class Stream(IterableDataset[float]):
        def __init__(self) -> None:
            self.place = 0

        def __iter__(self) -> Any:
            while self.place < 100_000:
                self.place += 1
                yield float(self.place)
            self.place = 0

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.place = state["place"]

    return DataLoader(Stream(), batch_size=_BATCH)


def _fit(loader: Any, how: str, folder: Path) -> None:
    import pytorch_lightning as pl  # noqa: PLC0415  # as above
    import torch  # noqa: PLC0415  # as above

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any) -> Any:
            if how != "save":
                self.trainer.should_stop = True
                raise _FirstBatch
            return self.layer(batch.float()[:, None]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class _FirstBatch(BaseException):
        pass

    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks: list[Any] = []
    path = folder / "saved.ckpt"
    if how != "alone":
        import resumable  # noqa: PLC0415  # its time is measured
        from resumable.integrations.lightning import ResumableCallback  # noqa: PLC0415  # the same

        loader, callbacks = resumable.wrap(loader), [ResumableCallback()]
    trainer = pl.Trainer(max_steps=_STEPS, callbacks=callbacks, enable_checkpointing=False, **options)
    with contextlib.suppress(_FirstBatch):
        trainer.fit(Module(), loader, ckpt_path=path if how == "resume" else None)
    if how == "save":
        trainer.save_checkpoint(path)


if __name__ == "__main__":
    import json
    import warnings

    warnings.simplefilter("ignore")
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(main(*sys.argv[1:])), file=said, flush=True)
    os._exit(0)  # the shutdown is not measured
