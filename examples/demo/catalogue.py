"""Names and labels of the sources; the code that creates them and trains is imported only in other processes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from resumable.errors import ConfigurationError

__all__ = ["SOURCES", "Source", "find_source", "installed", "missing_extras", "pip_install"]

_HERE = __package__  # `examples.demo` for the commands, `demo` for the scripts beside it
_MODULE = f"{_HERE}.sources"
_LOOP = f"{_HERE}.training"
_LIGHTNING = f"{_HERE}.lightning_training"
_ACCELERATE = f"{_HERE}.accelerate_training"
_TRANSFORMERS = f"{_HERE}.trainer_training"
_HUGGING_FACE = f"{_HERE}.hugging_face"
_FORMATS = f"{_HERE}.formats"
_DALI = f"{_HERE}.dali:make_dali"
_TORCH = ("torch", "torch._dynamo")
_TRAINER = (*_TORCH, "pytorch_lightning")
_IMPORTED_ONCE = {
    _LIGHTNING: ("pytorch_lightning", "resumable.integrations.lightning"),
    _ACCELERATE: ("accelerate", "resumable.integrations.accelerate"),
    _TRANSFORMERS: ("transformers.trainer", "resumable.integrations.transformers"),
    _HUGGING_FACE: ("datasets",),
    _FORMATS: ("pyarrow.parquet", "PIL.Image"),
}
_TARS = ("braceexpand",)
_PARQUET = ("pyarrow.parquet",)
_DALIS = "nvidia.dali.plugin.pytorch"
# The extra that provides a module. Finding a submodule would import its package, so top-level modules are checked; the
# package nvidia is an empty one, shared by others.
_EXTRAS = {
    "torch": "torch",
    "pytorch_lightning": "lightning",
    "nvidia.dali": "dali",
    "ffcv": "ffcv",
    "tensorflow_datasets": "tfds",
    "tensorflow": "tf",
    "braceexpand": "tars",
    "pyarrow": "parquet",
    "datasets": "datasets",
    "accelerate": "accelerate",
    "transformers": "transformers",
}


class Source(NamedTuple):
    """A kind of source.

    Args:
        label: for people.
        make: path of the function that creates the loader, `module:function`; it gets the digits to train on.
        program: module of the training program.
        slow: modules that take seconds to import and may be imported before a process is forked.
    """

    label: str
    make: str
    program: str = _LOOP
    slow: tuple[str, ...] = _TORCH

    @property
    def preloaded(self) -> tuple[str, ...]:
        """Modules that are slow to import; the demo's fork servers import them before the first run."""
        return (*_IMPORTED_ONCE.get(self.program, ()), *_IMPORTED_ONCE.get(self.make.partition(":")[0], ()))


SOURCES = {
    "list": Source("list", f"{_MODULE}:make_sequence"),
    "generator": Source("generator function", f"{_MODULE}:make_generator"),
    "reader": Source("object with state_dict", f"{_MODULE}:make_reader"),
    "map-style": Source("DataLoader", f"{_MODULE}:make_map_style"),
    "map-style-workers": Source("DataLoader, 2 workers", f"{_MODULE}:make_map_style_workers"),
    "own-sampler": Source("DataLoader, own sampler", f"{_MODULE}:make_own_sampler"),
    "stateful-stream": Source("IterableDataset with state, 2 workers", f"{_MODULE}:make_stateful_stream"),
    "stream": Source("IterableDataset, 2 workers", f"{_MODULE}:make_stream"),
    "dali": Source("DALI, JPEG files", _DALI, slow=(*_TORCH, _DALIS)),
    "dali-elastic": Source(
        "DALI, our sampler",
        f"{_HERE}.dali:make_dali_elastic",
        slow=(*_TORCH, _DALIS),
    ),
    "tfdata": Source("tf.data, shuffle buffer", f"{_HERE}.tfdata:make_tfdata", slow=(*_TORCH, "tensorflow")),
    "ffcv": Source("FFCV", f"{_HERE}.ffcv:make_ffcv", slow=(*_TORCH, "ffcv.loader")),
    "tfds": Source("TensorFlow Datasets", f"{_HERE}.tfds:make_tfds", slow=(*_TORCH, "tensorflow_datasets")),
    "hugging-face": Source("Hugging Face Dataset", f"{_HUGGING_FACE}:make_table", slow=(*_TORCH, "datasets")),
    "hugging-face-stream": Source(
        "Hugging Face IterableDataset, 2 workers", f"{_HUGGING_FACE}:make_stream", slow=(*_TORCH, "datasets")
    ),
    "tars": Source("Tars in blocks, 2 workers", f"{_FORMATS}:make_tars", slow=(*_TORCH, *_TARS, *_PARQUET)),
    "mixture": Source("mixture of Tars and Parquet", f"{_FORMATS}:make_mixture", slow=(*_TORCH, *_TARS, *_PARQUET)),
    "lightning": Source("Lightning, DataLoader", f"{_MODULE}:make_plain", _LIGHTNING, _TRAINER),
    "lightning-stream": Source(
        "Lightning, IterableDataset with state, 2 workers", f"{_MODULE}:make_stateful_stream", _LIGHTNING, _TRAINER
    ),
    "lightning-mixture": Source(
        "Lightning, mixture of Tars and Parquet",
        f"{_FORMATS}:make_mixture",
        _LIGHTNING,
        (*_TRAINER, *_TARS, *_PARQUET),
    ),
    "lightning-ffcv": Source("Lightning, FFCV", f"{_HERE}.ffcv:make_ffcv", _LIGHTNING, (*_TRAINER, "ffcv.loader")),
    "lightning-dali": Source("Lightning, DALI, JPEG files", _DALI, _LIGHTNING, (*_TRAINER, _DALIS)),
    "accelerate": Source("Accelerate, DataLoader", f"{_MODULE}:make_map_style", _ACCELERATE, (*_TORCH, "accelerate")),
    "transformers": Source(
        "transformers Trainer", f"{_MODULE}:make_plain", _TRANSFORMERS, (*_TORCH, "transformers.trainer")
    ),
}


def installed() -> list[Source]:
    """Return the sources whose frameworks are installed."""
    return [source for source in SOURCES.values() if not missing_extras(source)]


def missing_extras(source: Source) -> list[str]:
    """Return the extras with the missing packages of a source."""
    needed = {module for module in _EXTRAS if any(f"{slow}.".startswith(f"{module}.") for slow in source.slow)}
    return [_EXTRAS[module] for module in _EXTRAS if module in needed and not _is_there(module)]


def pip_install(*extras: str) -> str:
    """Return the command that installs the package with extras."""
    return f'pip install "resumable-data[{",".join(extras)}]"'


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def find_source(name: str) -> Source:
    """Return the source with a name, or the user's own for `module:function`.

    Raises:
        ConfigurationError: there is no such source.
    """
    if ":" in name:
        return Source(name, name)
    if name not in SOURCES:
        raise ConfigurationError(
            f"unknown source: {name!r}.\nUse {', '.join(SOURCES)}, or module:function for a custom source: a "
            "function that takes the digits and returns a loader from resumable.wrap."
        )
    return SOURCES[name]
