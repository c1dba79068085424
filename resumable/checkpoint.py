"""Checkpoints that a crash at any moment leaves loadable.

    <root>/step-000000000100/3f9c52e07ab1d846.pt   what torch.save wrote, under a name used once
    <root>/step-000000000100/COMMIT.json           the commit marker: a step without it does not exist

*Data file*: the bytes of one save. *Marker*: names a step's data file, its size and its digest, and is written last.
*Committed*: the marker is in place. *Leftover*: a file of a crashed save, which no marker names.
Steps alone order checkpoints; no clock is read anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import importlib
import io
import json
import operator
import os
import pickle
import re
import secrets
import shutil
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, SupportsIndex, TypeVar

from resumable.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptCheckpointError,
    CorruptCheckpointWarning,
    MissingDependencyError,
    ResumableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CheckpointStore"]

Result = TypeVar("Result")

FORMAT = 1  # of the marker; a reader refuses a higher one by name
MARKER = "COMMIT.json"
ALGORITHM = "sha256"  # processors have instructions for it, and `sha256sum` checks a data file by hand
CHUNK = 8 << 20  # bytes handed to the filesystem at once, so that a remote file never buffers a whole tensor
OURS = re.compile(r"[0-9a-f]{16}\.(pt|tmp)")  # the only names that are ever deleted, besides the marker
DIRECTORY = re.compile(r"step-(\d{12,})")
NO_FSYNC = (errno.EINVAL, errno.ENOTSUP)  # from file systems that know no fsync of a directory
SHOWN = 10  # steps listed in an error message
LONGEST = 300  # characters of another library's error in one of ours
REFUSED = "WeightsUnpickler error: "  # stands before the reason in what torch raises

_writing: set[tuple[str, str]] = set()  # (directory, token) of the saves under way in this process
_registry = threading.Lock()  # so that no step is registered as being written while it is removed


class CheckpointStore:
    """Checkpoints in one directory or bucket prefix, each written whole or not at all.

    ```python
    store = CheckpointStore("runs/digits", keep=3)
    store.save(100, {"model": model.state_dict(), "data": loader.state_dict()})
    if (last := store.latest()) is not None:
        model.load_state_dict(last["model"])
    ```

    A store has one writing process at a time, such as rank 0, whose threads may save at once, and any number of
    readers. Ranks that save different content need a root each. The how-to guide says what a filesystem must provide.

    Args:
        root: local path, or any URL that fsspec knows, such as `s3://bucket/run` or `memory://run`.
        keep: how many of the newest steps stay after a save; None keeps all. The step just saved always stays.
        verify: try before each save whether `torch.load(weights_only=True)` will accept the content. It costs a
            pickling of everything but the tensors' data, and no reading back.
        storage_options: passed to the fsspec filesystem: credentials, endpoints.

    Raises:
        ConfigurationError: `keep` below 1, a protocol that fsspec does not know, or a root that is a file.
        MissingDependencyError: the filesystem's package is not installed.
        CheckpointError: the storage failed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep: int | None = None,
        verify: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.keep = keep if keep is None else _whole(keep, "keep", 1, "Use None to keep all.")
        self.verify = verify
        self._files, self._path = _connect(self.root, storage_options or {})
        self._settled: set[int] = set()  # committed steps without leftovers, which need not be listed at each save

    def __repr__(self) -> str:
        return f"CheckpointStore({self.root!r}, keep={self.keep})"

    def save(self, step: SupportsIndex, content: Any) -> None:
        """Write `content` as the checkpoint of `step`, then remove old steps and the leftovers of crashed saves.

        When this returns, the checkpoint is durable. Until then the other steps, and an earlier save of this step, stay
        loadable. Leftovers are removed from lower steps only, and not where a thread of this process is writing.
        A removal that fails gives a RuntimeWarning, and the next save tries it again.

        Args:
            step: 0 or more; an integer of any kind, such as numpy's.
            content: dicts and lists of plain values and tensors: what `torch.load(weights_only=True)` accepts.

        Raises:
            ConfigurationError: the step is negative or no integer, or the content is None.
            CheckpointError: the content could not be loaded back, or the storage failed (then that error is the cause).
        """
        number = _step(step)
        if content is None:
            raise ConfigurationError("content is None, which is how `latest()` says no checkpoint. Save a dict.")
        if self.verify:
            _refuse_unloadable(number, content)
        writer = self._directory(number), secrets.token_hex(8)
        with _registry:
            _writing.add(writer)
        try:
            replaced = self._commit(number, writer[1], content)
        finally:
            _writing.discard(writer)
        self._tidy(number, replaced)

    def load(self, step: SupportsIndex, *, map_location: Any = "cpu") -> Any:
        """Give the content of the checkpoint of `step`, after its bytes were compared with the checksum.

        Args:
            step: a committed step.
            map_location: where tensors go, as in `torch.load`.

        Raises:
            CheckpointNotFoundError: the step is not committed.
            CorruptCheckpointError: its bytes are not the ones that were written; nothing was unpickled.
            CheckpointError: the storage failed, the marker has a newer format, or a class is not allowed here.
        """
        number = _step(step)
        try:
            return self._load(number, map_location)
        except CheckpointNotFoundError:
            raise self._not_found(number, "loaded") from None

    def latest(self, *, map_location: Any = "cpu") -> Any | None:
        """Give the content of the newest checkpoint that is whole, or None before the first save.

        Corrupt checkpoints on the way are skipped with a CorruptCheckpointWarning each. A directory that a crashed save
        left without a marker is no checkpoint, and no reason for a warning.

        Args:
            map_location: where tensors go, as in `torch.load`.

        Raises:
            CorruptCheckpointError: there are checkpoints and all are corrupt: None would restart training from zero.
            CheckpointError: as for `load`. Storage that fails is not skipped: the checkpoint may be whole.
        """
        return self._newest(lambda step: self._load(step, map_location))

    def latest_step(self) -> int | None:
        """Give the step of the checkpoint that `latest()` gives, or None; its data is compared, not unpickled.

        Raises:
            CorruptCheckpointError: there are checkpoints and all are corrupt.
            CheckpointError: as for `load`.
        """
        return self._newest(self._check)

    def steps(self) -> list[int]:
        """Give the committed steps in ascending order, without reading their data.

        Raises:
            CheckpointError: the storage failed.
        """
        with _reporting(f"The steps in {self.root} could not be listed"):
            return [step for step in self._listed() if MARKER in self._files.names(self._directory(step))]

    def delete(self, step: SupportsIndex) -> None:
        """Remove the checkpoint of `step`, its marker first, so that a crash leaves no half of it.

        Raises:
            CheckpointNotFoundError: the step is not committed.
            CheckpointError: the storage failed.
        """
        number = _step(step)
        if number not in self.steps():
            raise self._not_found(number, "deleted")
        with _reporting(f"step {number} in {self.root} could not be deleted"):
            self._remove(number)

    def _directory(self, step: int) -> str:
        return f"{self._path}/step-{step:012d}"

    def _listed(self) -> list[int]:
        """Give the steps that have a directory, committed or not, in ascending order."""
        matches = [match for name in self._files.names(self._path) if (match := DIRECTORY.fullmatch(name))]
        return sorted(int(match[1]) for match in matches if match[0] == f"step-{int(match[1]):012d}")

    def _not_found(self, step: int, verb: str) -> CheckpointNotFoundError:
        steps = self.steps()
        more = f" and {len(steps) - SHOWN} before" if len(steps) > SHOWN else ""
        return CheckpointNotFoundError(
            f"step {step} has no committed checkpoint in {self.root}, so nothing was {verb}.\n"
            f"  asked for: {step}\n  committed: {', '.join(map(str, steps[-SHOWN:])) or 'none'}{more}\n"
            "Use a committed step; `latest()` finds the newest."
        )

    def _commit(self, step: int, token: str, content: Any) -> str | None:
        """Write data and marker, and give the name of the data file that the step's earlier marker named, if any."""
        directory = self._directory(step)
        failed = f"step {step} was not saved to {self.root}, and the checkpoints before it are untouched"
        with _reporting(failed, "Mend what it names and save again. A store has one writing process."):
            try:
                replaced = self._committed_file(step)
                self._files.make_dir(directory)
                marker = self._write(step, f"{directory}/{token}.pt", content)
                publish = self._files.stage(f"{directory}/{MARKER}", f"{directory}/{token}.tmp", marker.dump())
            except BaseException:
                self._discard(directory, token)
                raise
        # From here on the marker may be in place even if an error says otherwise, so the data file has to stay.
        with _reporting(f"step {step} may or may not be saved to {self.root}", "`steps()` says whether it is."):
            publish()
        return replaced

    def _committed_file(self, step: int) -> str | None:
        """Give the name of the data file that the step's marker names, or None if no readable marker does."""
        try:
            return self._marker(step).file
        except CheckpointError:
            return None

    def _write(self, step: int, path: str, content: Any) -> _Marker:
        """Write a data file, and see that the filesystem holds as many bytes as went in."""
        with self._files.create(path) as file:
            sink = _Sink(file)
            sink.save(content)
        if (held := self._files.size(path)) != sink.count:
            raise OSError(f"{path} holds {held} bytes after {sink.count} were written")
        return _Marker(step, Path(path).name, sink.count, ALGORITHM, sink.hash.hexdigest())

    def _discard(self, directory: str, token: str) -> None:
        """Remove what a failed save wrote, as far as the failing storage lets us; a later save removes the rest."""
        for suffix in ("pt", "tmp"):
            with contextlib.suppress(Exception):
                self._files.remove(f"{directory}/{token}.{suffix}")

    def _tidy(self, saved: int, replaced: str | None) -> None:
        """Remove what the commit of `saved` made superfluous; a failure here is no failed save, for it is durable."""
        try:
            if replaced is not None:
                self._files.remove(f"{self._directory(saved)}/{replaced}")
            self._prune(saved)
        except Exception as error:  # noqa: BLE001 - a filesystem may raise anything, and training must go on
            message = f"step {saved} is saved in {self.root}, but older files could not be removed: {error!r}. "
            warnings.warn(message + "They take up space until the next save tries again.", RuntimeWarning, 3)

    def _prune(self, saved: int) -> None:
        committed = [saved]
        for step in self._listed():
            with _registry:
                if not self._busy(step, saved) and (step in self._settled or self._sweep(step, saved)):
                    committed.append(step)
        for step in sorted(committed)[: -self.keep] if self.keep else ():
            with _registry:
                if not self._busy(step, saved):
                    self._remove(step)

    def _busy(self, step: int, saved: int) -> bool:
        """Tell whether a step is the one just saved, or one that a thread of this process is saving now."""
        return step == saved or any(directory == self._directory(step) for directory, _ in tuple(_writing))

    def _sweep(self, step: int, saved: int) -> bool:
        """Tell whether a step is committed, after its leftovers are removed if it is older than `saved`."""
        directory = self._directory(step)
        names = self._files.names(directory)
        if step < saved and MARKER not in names:
            self._remove(step)
        elif step < saved:
            live = self._committed_file(step)
            if live and len(names) > len({MARKER, live}):
                self._remove_files(directory, names - {live})
            self._settled.add(step)
        return MARKER in names

    def _remove(self, step: int) -> None:
        """Remove a step: first the marker, durably, then the files that it may have named."""
        directory = self._directory(step)
        self._settled.discard(step)
        names = self._files.names(directory)
        if MARKER in names:
            self._files.remove(f"{directory}/{MARKER}")
        self._remove_files(directory, names)
        self._files.remove_dir(directory)

    def _remove_files(self, directory: str, names: set[str]) -> None:
        """Remove files that no marker names, after it is durable that none does."""
        with contextlib.suppress(FileNotFoundError):
            self._files.settle(directory)
        for name in filter(OURS.fullmatch, names):
            self._files.remove(f"{directory}/{name}")

    def _newest(self, read: Callable[[int], Result]) -> Result | None:
        """Give what `read` makes of the newest whole checkpoint."""
        corrupt: list[CorruptCheckpointError] = []
        with _reporting(f"The steps in {self.root} could not be listed"):
            listed = self._listed()
        for step in reversed(listed):
            try:
                result = read(step)
            except CheckpointNotFoundError:
                continue
            except CorruptCheckpointError as error:
                corrupt.append(error)
                continue
            _warn_skipped(corrupt, step)
            return result
        if corrupt:
            raise CorruptCheckpointError(_all_corrupt(self.root, corrupt))
        # A writer may have committed a step, and pruned those listed, in the meantime.
        return self._newest(read) if self.steps() else None

    def _marker(self, step: int) -> _Marker:
        try:
            raw = self._files.read(f"{self._directory(step)}/{MARKER}")
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"step {step} has no committed checkpoint in {self.root}.") from None
        return _Marker.parse(raw, step)

    def _open(self, step: int) -> tuple[_Marker, BinaryIO]:
        """Open a step's data file; if it is gone, the step may just have been saved again or deleted."""
        marker = self._marker(step)
        try:
            return marker, self._files.fetch(f"{self._directory(step)}/{marker.file}")
        except FileNotFoundError:
            if self._marker(step) == marker:
                raise _corrupt(step, f"its data file {marker.file}, {marker.size} bytes, is missing") from None
        return self._open(step)

    @contextlib.contextmanager
    def _verified(self, step: int) -> Iterator[BinaryIO]:
        """Give a step's data file, its bytes compared with the marker and rewound."""
        with _reporting(f"step {step} in {self.root} could not be read, which does not mean that it is corrupt"):
            marker, file = self._open(step)
            with file:
                marker.compare(file)
                yield file

    def _check(self, step: int) -> int:
        with self._verified(step):
            return step

    def _load(self, step: int, map_location: Any) -> Any:
        with self._verified(step) as file:
            try:
                return _torch().load(file, map_location=map_location, weights_only=True)
            except pickle.UnpicklingError as error:
                raise CheckpointError(
                    f"step {step} in {self.root} is whole, but `torch.load(weights_only=True)` refuses it here.\n"
                    f"  {_line(error)}\n"
                    "Allow the class with `torch.serialization.add_safe_globals` as in the run that saved it."
                ) from error


@dataclasses.dataclass(frozen=True)
class _Marker:
    """What `COMMIT.json` says: the data file of a step, its size in bytes and its digest in hexadecimal digits."""

    step: int
    file: str
    size: int
    algorithm: str
    digest: str

    def dump(self) -> bytes:
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}).encode()

    @classmethod
    def parse(cls, raw: bytes, step: int) -> _Marker:
        """Read a step's marker.

        Raises:
            CheckpointError: it has a newer format.
            CorruptCheckpointError: it is no marker, or another step's.
        """
        try:
            fields = dict(json.loads(raw))
            found = operator.index(fields.pop("format"))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _corrupt(step, f"its marker cannot be read: {raw[:80]!r}") from None
        if found > FORMAT:
            raise CheckpointError(_newer(step, found))
        with contextlib.suppress(TypeError):
            marker = cls(**fields)
            if (found, marker.step, marker.algorithm) == (FORMAT, step, ALGORITHM) and OURS.fullmatch(marker.file):
                return marker
        raise _corrupt(step, f"its marker makes no sense: {raw[:300]!r}")

    def compare(self, file: BinaryIO) -> None:
        """Compare a data file with this marker, and rewind it.

        Raises:
            CorruptCheckpointError: the size or the digest differs.
        """
        if (size := file.seek(0, os.SEEK_END)) != self.size:
            raise _corrupt(self.step, f"its data file {self.file} holds {size} bytes, and {self.size} were written")
        file.seek(0)
        if (found := _digest(file)) != self.digest:
            values = f"  when written: {self.digest}\n  now:          {found}\n"
            raise _corrupt(self.step, f"its data file {self.file} has another {ALGORITHM} checksum", values)
        file.seek(0)


class _Sink:
    """The file that `torch.save` writes to: counts and hashes on the way, and remembers the storage's own error."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.hash = hashlib.new(ALGORITHM)
        self.count = 0
        self.error: Exception | None = None

    def save(self, content: Any) -> None:
        """Write `content` in torch's format.

        Raises:
            Exception: the storage's error, which torch's writer hides behind a RuntimeError, or what pickling raised.
        """
        torch = _torch()
        try:
            torch.save(content, self)
        except Exception:
            if self.error is not None:
                raise self.error from None
            raise

    def write(self, data: Any) -> int:
        """Write all of `data` in pieces; each is copied, as torch's memory is valid during this call only."""
        if self.error is not None:
            raise self.error
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), CHUNK):
                self._write(bytes(view[start : start + CHUNK]))
        except Exception as error:
            self.error = error
            raise
        return len(view)

    def _write(self, piece: bytes) -> None:
        self.file.write(piece)
        self.hash.update(piece)
        self.count += len(piece)

    def flush(self) -> None:
        """Do nothing: closing the file flushes it."""


class _Files:
    """The few operations on files that a store needs, on any fsspec filesystem."""

    def __init__(self, filesystem: Any) -> None:
        self.filesystem = filesystem

    def names(self, path: str) -> set[str]:
        """Give the names in a directory; none if it does not exist. Other errors are raised: they are no emptiness."""
        self.filesystem.invalidate_cache(path)
        try:
            return {name.rstrip("/").rpartition("/")[2] for name in self.filesystem.ls(path, detail=False)}
        except FileNotFoundError:
            return set()

    def size(self, path: str) -> int:
        return int(self.filesystem.info(path)["size"])

    def make_dir(self, path: str) -> None:
        self.filesystem.makedirs(path, exist_ok=True)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Open a new file for writing; it is durable when the block is left."""
        with self.filesystem.open(path, "wb") as file:
            yield file

    def stage(self, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        """Give a function that puts `data` at `path` in one step, so that readers see the old bytes or the new."""
        del temporary  # an object store's put has no visible middle
        return functools.partial(self.filesystem.pipe_file, path, data)

    def read(self, path: str) -> bytes:
        return bytes(self.filesystem.cat_file(path))

    def fetch(self, path: str) -> BinaryIO:
        """Open a file for reading, downloaded once, so that the bytes compared are the bytes unpickled."""
        with self.filesystem.open(path, "rb") as source, contextlib.ExitStack() as on_error:
            copy = on_error.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(source, copy, CHUNK)
            on_error.pop_all()
            return copy

    def remove(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(path)

    def remove_dir(self, path: str) -> None:
        """Remove a directory if it is empty, and exists, and the filesystem has directories."""
        with contextlib.suppress(Exception):
            self.filesystem.rmdir(path)

    def settle(self, directory: str) -> None:
        """Make the names in a directory durable; object stores do so with each request."""


class _LocalFiles(_Files):
    """The same on local files, with an fsync wherever a later operation relies on an earlier one."""

    def names(self, path: str) -> set[str]:
        try:
            return set(os.listdir(path))  # noqa: PTH208 - names are needed, not paths
        except FileNotFoundError:
            return set()

    def make_dir(self, path: str) -> None:
        directory = Path(path)
        if not directory.parent.is_dir():
            self.make_dir(str(directory.parent))
        directory.mkdir(exist_ok=True)
        self.settle(str(directory.parent))

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with Path(path).open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def stage(self, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        with self.create(temporary) as file:
            file.write(data)
        self.settle(str(Path(path).parent))
        return functools.partial(self._publish, temporary, path)

    def _publish(self, temporary: str, path: str) -> None:
        Path(temporary).replace(path)
        self.settle(str(Path(path).parent))

    def fetch(self, path: str) -> BinaryIO:
        return Path(path).open("rb")

    def settle(self, directory: str) -> None:
        if os.name == "nt":  # Windows cannot open a directory, and keeps the order of its metadata by itself
            return
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in NO_FSYNC:
                raise
        finally:
            os.close(descriptor)


def _connect(root: str, options: Mapping[str, Any]) -> tuple[_Files, str]:
    """Find the filesystem of a root and the root's path on it."""
    from fsspec.core import url_to_fs  # noqa: PLC0415 - only a store needs it
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415 - the same

    try:
        filesystem, path = url_to_fs(root, **options)
    except ImportError as error:
        install = f"pip install 'fsspec[{root.partition('://')[0].rpartition('::')[2]}]'"
        raise MissingDependencyError(f"{root} needs a package that is missing. {error}: {install}") from error
    except ValueError as error:
        raise ConfigurationError(
            f"root={root!r} cannot be opened: {error}.\nUse a local path, or a URL that fsspec knows, such as s3://, "
            "gs:// or memory://. Other protocols come with a package of their own: install that first."
        ) from error
    _refuse_file(filesystem, root, path)
    return (_LocalFiles if isinstance(filesystem, LocalFileSystem) else _Files)(filesystem), path.rstrip("/")


def _refuse_file(filesystem: Any, root: str, path: str) -> None:
    kind = "none"
    with _reporting(f"root={root!r} could not be looked up"), contextlib.suppress(FileNotFoundError):
        try:
            kind = filesystem.info(path)["type"]
        except NotADirectoryError:
            kind = "file"
    if kind == "file":
        raise ConfigurationError(
            f"root={root!r} is a file, or is below one, so no checkpoint could be written under it.\n"
            "Give a directory; it is made when it does not exist."
        )


def _refuse_unloadable(step: int, content: Any) -> None:
    """Refuse content that `torch.load(weights_only=True)` would refuse, before anything is written."""
    if (error := _trial(content)) is not None:
        raise CheckpointError(
            f"step {step} was not saved: {_culprit(content, 'content')} cannot be saved so that "
            f"`torch.load(weights_only=True)` accepts it, and the checkpoint could never be loaded.\n  {_line(error)}\n"
            "Convert it to numbers, strings, bytes, lists, dicts or tensors, or allow its class with "
            "`torch.serialization.add_safe_globals` in this run and in the one that loads it."
        ) from error


def _trial(content: Any) -> Exception | None:
    """Save and load `content` in memory with empty tensors, and give the error if there is one."""
    try:
        _round_trip(content, _trial_pickle())
    except MissingDependencyError:
        raise
    except Exception as error:  # noqa: BLE001 - pickling runs code of any class; whatever it raises is the finding
        return error
    return None


def _round_trip(content: Any, pickle_module: Any) -> None:
    buffer = io.BytesIO()
    _torch().save(content, buffer, pickle_module=pickle_module)
    buffer.seek(0)
    _torch().load(buffer, map_location="cpu", weights_only=True)


@functools.cache
def _trial_pickle() -> Any:
    """Give a stand-in for the pickle module that writes empty tensors, and tries the unusual ones by themselves."""
    torch = _torch()

    def is_ordinary(value: Any) -> bool:
        return (
            type(value) in (torch.Tensor, torch.nn.Parameter)
            and value.layout is torch.strided
            and value.device.type in ("cpu", "cuda")
            and not (value.is_quantized or value.is_nested or vars(value))
        )

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return NotImplemented
            ordinary = is_ordinary(value)
            if not ordinary:
                _round_trip(value, pickle)
            return torch.empty(0, dtype=value.dtype if ordinary else None).__reduce_ex__(2)

    return types.SimpleNamespace(__name__="pickle", Pickler=Pickler)


def _culprit(content: Any, path: str) -> str:
    """Find the smallest part of `content` that cannot be loaded back, and give its place and type."""
    parts: Any = ()
    if isinstance(content, Mapping):
        parts = content.items()
    elif isinstance(content, list | tuple):
        parts = enumerate(content)
    for key, part in parts:
        if _trial(part) is not None:
            return _culprit(part, f"{path}[{key!r}]")
    return f"{path}, a {type(content).__module__}.{type(content).__qualname__},"


@contextlib.contextmanager
def _reporting(what: str, remedy: str = "Mend the storage and try again.") -> Iterator[None]:
    """Turn the storage's error into a CheckpointError that says what failed and what to do."""
    try:
        yield
    except ResumableError:
        raise
    except Exception as error:  # cloud clients raise errors of their own, which are no OSErrors
        raise CheckpointError(f"{what}.\n  {_line(error)}\n{remedy}") from error


def _step(step: SupportsIndex) -> int:
    return _whole(step, "step", 0, "Give the number of training steps that were done.")


def _whole(value: SupportsIndex, name: str, least: int, remedy: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigurationError(
            f"{name} has no meaning here.\n  needed: a whole number, {least} or more\n  got:    {value!r}\n{remedy}"
        )
    return number


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        message = "CheckpointStore writes torch's format, and torch is not installed: pip install 'resumable[torch]'"
        raise MissingDependencyError(message) from error


def _digest(file: Any) -> str:
    return hashlib.file_digest(file, ALGORITHM).hexdigest()


def _corrupt(step: int, reason: str, values: str = "") -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"The checkpoint of step {step} is corrupt: {reason}.\n{values}"
        "Loading it would give something else than was saved. "
        f"Use another step; `latest()` skips this one, and `delete({step})` removes it."
    )


def _warn_skipped(corrupt: list[CorruptCheckpointError], used: int) -> None:
    for error in corrupt:
        message = f"{error}\nIt was skipped, and step {used} is used: the work since then is done again."
        warnings.warn(message, CorruptCheckpointWarning, stacklevel=4)


def _all_corrupt(root: str, corrupt: list[CorruptCheckpointError]) -> str:
    return (
        f"No checkpoint in {root} can be loaded, and starting anew would silently lose the training so far.\n"
        + "\n".join(f"- {error}" for error in corrupt)
        + "\nRestore the files from a copy. To start anew on purpose, `delete(step)` each or use another root."
    )


def _newer(step: int, found: int) -> str:
    return (
        f"The marker of step {step} was written by a newer version, and using an older step would lose work.\n"
        f"  its format:                    {found}\n  the newest this version reads: {FORMAT}\n"
        f"Update with `pip install --upgrade resumable`, or `delete({step})` to do without it."
    )


def _line(error: Exception) -> str:
    """Give an error's type and what it says in one line; of torch's long advice, only what it refused."""
    text = str(error)
    return " ".join(f"{type(error).__name__}: {text.partition(REFUSED)[2].split('. ')[0] or text}".split())[:LONGEST]
