"""source(), which finds a split and its reader, and the adapter of `wrap` for splits that are read by index."""

from __future__ import annotations

import importlib.util
import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from resumable._distribution import pip_install
from resumable.backends.tfds.backend import TfdsBackend
from resumable.backends.tfds.decoding import Decoding, choose_decoder
from resumable.backends.tfds.layout import layout_of
from resumable.backends.tfds.records import ArrayRecords, TFRecords, default_folder
from resumable.backends.tfds.source import GuardedSource, TfdsSource, default_threads
from resumable.errors import ConfigurationError, MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable._options import Options
    from resumable.backends.tfds.layout import Layout


__all__ = ["adapt", "source"]


_READERS = ("auto", "index", "data_source", "tf")


def source(  # noqa: PLR0913  # every option has a default
    dataset: Any,
    split: Any,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    reader: Literal["auto", "index", "data_source", "tf"] = "auto",
    decode: Literal["cv2", "pil", "none", "tf"] | None = None,
    as_supervised: bool = False,
    fields: Sequence[str] | None = None,
    add_tfds_id: bool = False,
    mark_padding: bool = False,
    repeats: int = 1,
    verify: bool = False,
    index_dir: str | os.PathLike[str] | Literal[False] | None = None,
    threads: int | None = None,
) -> TfdsSource:
    """Open a split from TensorFlow Datasets for reading by index.

    Args:
        dataset: a builder, the folder of a prepared dataset (with its `dataset_info.json`), or the name of a dataset in
            `data_dir`.
        split: a name, a slice such as `"train[10%:50%]"`, a sum of them, one of `tfds.even_splits`, or a
            `tfds.core.ReadInstruction`.
        data_dir: as in `tfds.load`; only with a name.
        reader: "index" reads TFRecord files with an index built by this package, "data_source" reads array_record files
            with their own package, and "auto" picks the one that fits the files. None of these imports TensorFlow. "tf"
            reads the same records, but decodes them with TensorFlow, bit for bit as `as_dataset` does.
        decode: how images are decoded: "cv2", "pil", "none" (the encoded bytes), or always "tf" with the reader "tf".
            By default "cv2" if OpenCV is installed, otherwise "pil". The name is part of the state, as pixels differ.
        as_supervised: return samples as tuples, as the dataset declares them, instead of dicts with sorted names.
        fields: the features to decode; all by default.
        add_tfds_id: add the field `tfds_id`, the sample's name.
        mark_padding: add `valid` to each sample (as the last part of a tuple). It is False for samples that only fill
            up the last batch of `tail="pad"`.
        repeats: how often each sample appears in an epoch.
        verify: compare the checksum of each TFRecord that is read, which takes a third of a millisecond.
        index_dir: folder for the indices of TFRecord files; by default in `XDG_CACHE_HOME` or `~/.cache`. False keeps
            them in memory only.
        threads: number of threads that read ahead if `wrap` reads the source in this process, or 0. By default one per
            processor, at most 8. In a `DataLoader`, its workers read.

    Raises:
        MissingDependencyError: a package is not installed; the message has the install command.
        ConfigurationError: there is no such dataset, split, field or option.
        UnsupportedError: the format of the files has no reader by index.
    """
    _check_options(reader, repeats, threads)
    info, folder = _find_dataset(dataset, data_dir)
    layout = layout_of(info, split, folder)
    decode_by = choose_decoder(decode, tf=reader == "tf")
    structure = _supervised(info, fields) if as_supervised else None
    if add_tfds_id and as_supervised:
        raise ConfigurationError(
            "add_tfds_id=True and as_supervised=True were both passed, but a tuple cannot have a field tfds_id.\n"
            "Remove one of them."
        )
    chosen = sorted(_names_in(structure)) if as_supervised else _check_fields(info, fields)
    _check_added(info, chosen, {"tfds_id": add_tfds_id, "valid": mark_padding and structure is None})
    where = default_folder() if index_dir is None else None if index_dir is False else Path(index_dir)
    extra = {"repeats": str(repeats)} if repeats != 1 else {}
    return TfdsSource(
        layout,
        _records(layout, reader, where, verify=verify),
        Decoding(folder, decode_by, chosen, structure),
        identity={**layout.identity, "decode": decode_by, "fields": _describe_fields(structure, chosen), **extra},
        repeats=repeats,
        mark_padding=mark_padding,
        add_tfds_id=add_tfds_id,
        threads=default_threads() if threads is None else threads,
    )


def _check_options(reader: str, repeats: int, threads: int | None) -> None:
    if reader not in _READERS:
        raise ConfigurationError(
            f"reader must be one of {', '.join(_READERS)}, but it is {reader!r}.\n"
            'It determines how the files are read. Use "auto" to pick the one that fits the files.'
        )
    for name, value, least in (("repeats", repeats, 1), ("threads", 0 if threads is None else threads, 0)):
        if not hasattr(value, "__index__") or isinstance(value, bool) or operator.index(value) < least:
            raise ConfigurationError(
                f"{name} must be an integer of {least} or more, but it is {value!r}.\n"
                f"Pass for example {name}={max(least, 1)}."
            )


def _find_dataset(dataset: Any, data_dir: Any) -> tuple[Any, str]:
    """Return the `DatasetInfo` and the folder of a dataset."""
    if importlib.util.find_spec("tensorflow_datasets") is None:
        raise MissingDependencyError(
            f"tensorflow_datasets is not installed.\nInstall it: {pip_install('tfds')} (TensorFlow is not needed)"
        )
    import tensorflow_datasets as tfds  # noqa: PLC0415  # half a second

    if hasattr(dataset, "info") and hasattr(dataset, "data_dir"):
        return dataset.info, os.fspath(dataset.data_dir)
    path = Path(dataset)
    if data_dir is None and (path / "dataset_info.json").is_file():
        builder = tfds.builder_from_directory(os.fspath(path))
        return builder.info, os.fspath(path)
    try:
        builder = tfds.builder(os.fspath(dataset), data_dir=None if data_dir is None else os.fspath(data_dir))
    except Exception as error:
        raise ConfigurationError(
            f"there is no dataset {os.fspath(dataset)!r} in {data_dir or 'the default data_dir'}: "
            f"{type(error).__name__}: {error}\nNothing could be read. Pass a builder, the name and data_dir of a "
            "prepared dataset, or its folder (which contains dataset_info.json)."
        ) from error
    return builder.info, os.fspath(builder.data_dir)


def _records(layout: Layout, reader: str, where: Path | None, *, verify: bool) -> TFRecords | ArrayRecords:
    wanted = {"index": "tfrecord", "data_source": "array_record"}.get(reader, layout.file_format)
    if layout.file_format not in {"tfrecord", "array_record"}:
        raise UnsupportedError(
            f"the files of {layout.folder} have the format {layout.file_format}, which cannot be read by index.\n"
            "Only tfrecord and array_record can. Prepare the dataset in one of them, or convert its files: "
            "python -m tensorflow_datasets.scripts.convert_format --help."
        )
    if wanted != layout.file_format:
        raise ConfigurationError(
            f'reader="{reader}" reads files in the format {wanted}, but the files of {layout.folder} have the format '
            f'{layout.file_format}.\nThey could not be read. Use reader="auto" to pick the reader that fits.'
        )
    if wanted == "tfrecord":
        return TFRecords(layout, where, verify=verify)
    if importlib.util.find_spec("array_record") is None:
        raise MissingDependencyError(
            f"array_record files need the package array_record.\nInstall it: {pip_install('tfds')}"
        )
    return ArrayRecords(layout)


def _supervised(info: Any, fields: Sequence[str] | None) -> Any:
    if fields is not None:
        raise ConfigurationError(
            "fields and as_supervised were both passed, but each determines what a sample contains.\n"
            "Remove one of them."
        )
    if info.supervised_keys is None:
        raise ConfigurationError(
            f"{info.full_name} does not declare supervised keys, so as_supervised=True has no effect.\n"
            "Pass fields=[...] with the names that you need."
        )
    return info.supervised_keys


def _names_in(structure: Any) -> set[str]:
    if isinstance(structure, str):
        return {structure}
    parts = structure.values() if isinstance(structure, dict) else structure
    return set[str]().union(*map(_names_in, parts))


def _check_fields(info: Any, fields: Sequence[str] | None) -> list[str] | None:
    if fields is None:
        return None
    if isinstance(fields, str) or not fields or not set(fields) <= set(info.features):
        raise ConfigurationError(
            f"fields must be a list of features, but it is {fields!r}.\n"
            f"Samples would lack the requested fields. {info.full_name} has {', '.join(sorted(info.features))}."
        )
    return sorted(set(fields))


def _check_added(info: Any, chosen: list[str] | None, added: dict[str, bool]) -> None:
    for name in set(info.features if chosen is None else chosen) & {name for name, wanted in added.items() if wanted}:
        option = {"tfds_id": "add_tfds_id", "valid": "mark_padding"}[name]
        raise ConfigurationError(
            f"{info.full_name} has a feature {name!r}, and {option}=True adds a field with the same name.\n"
            f"The feature would be overwritten. Exclude it with fields=[...], or remove {option}."
        )


def _describe_fields(structure: Any, fields: list[str] | None) -> str:
    if structure is not None:
        return f"supervised {structure}"
    return "all" if fields is None else ", ".join(fields)


def adapt(thing: Any, options: Options) -> tuple[TfdsBackend, Options]:
    """Adapt one of our sources, or a data source of TensorFlow Datasets.

    Raises:
        UnsupportedError: it is a builder, so the split is unknown.
    """
    if hasattr(thing, "as_dataset"):
        raise UnsupportedError(
            f"this is the builder of {thing.info.full_name}, which has the splits {', '.join(thing.info.splits)}.\n"
            "It is unknown which of them to read. Wrap resumable.backends.tfds.source(builder, split), or pass that to "
            "a DataLoader as its dataset."
        )
    options.refuse(
        "a split of TensorFlow Datasets",
        shard="Samples are divided among the ranks by index, whatever the files are.",
    )
    source = thing if isinstance(thing, TfdsSource) else GuardedSource(thing)
    options = options.with_defaults()
    return TfdsBackend(source, options), options
