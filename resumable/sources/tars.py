"""Tars: WebDataset shards with samples by index."""

from __future__ import annotations

import io
import json
import operator
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._distribution import pip_install
from resumable.errors import ConfigurationError, DataError, MissingDependencyError, ResumableError
from resumable.samplers.base import check_length
from resumable.sources._files import Files, base_of
from resumable.sources._tar_index import Reading, digest_of, find_shards, open_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from resumable._randomness.keyed import IntArray
    from resumable.protocols import Upcoming


__all__ = ["Tars", "image"]

_CACHE = 1 << 34  # bytes


class Tars:
    """WebDataset shards as samples by index; for `wrap`, a `DataLoader`, `resumable.mix`, or use on its own.

    A sample is a dict with `"__key__"`, `"__url__"` (its shard), and a value for each of its members by extension, such
    as `"jpg"` and `"json"`. As in webdataset, a sample is a sequence of members with the same name up to the first dot.

    Each shard is scanned once. An index of its samples is saved next to it, or in the folder `index`. After that, each
    sample needs only one read. A shard that has changed since is scanned again. A saved state has only a digest of the
    data. `sizes` are the numbers of samples per shard, for `shuffle="blocks"`.

    Args:
        shards: path or URL of a shard, a pattern with `{000..099}`, `{a,b}`, `*`, `?` or `[...]`, or a list of these.
            Any URL that fsspec supports works, such as `s3://bucket/train-{000..099}.tar`.
        decode: True decodes by extension: `json`, `txt`, `cls` (an integer), `npy`, `npz`, `pt` (without running code),
            and images as arrays of shape `(height, width, 3)`. Other members stay bytes. With False, all members stay
            bytes. A dict maps extensions to functions of bytes, or to None for bytes; other extensions are decoded as
            with True.
        transform: function that converts each decoded sample.
        index: folder or URL for the indexes. None saves each index next to its shard, False saves none.
        cache: local folder for blocks of samples. With `shuffle="blocks"`, each block is then read from its shard as
            one piece, before its samples are needed, and only once for all processes that share the folder. The
            folder's content is kept for later runs. With None, the samples of a batch are read, neighbours together.
        cache_bytes: maximum size of the folder. The oldest pieces are removed first. Two windows must fit.
        storage_options: for the filesystem of URLs, as in fsspec.

    Raises:
        ConfigurationError: a shard does not exist, is compressed, truncated, damaged or not a tar; or it has pickles.
        MissingDependencyError: braceexpand, Pillow or a filesystem is not installed.
        DataError: while reading, if a shard was rewritten, truncated or removed since, or a member cannot be decoded.
    """

    def __init__(  # noqa: PLR0913  # keyword-only options with defaults
        self,
        shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        decode: bool | Mapping[str, Callable[[bytes], Any] | None] = True,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        index: str | os.PathLike[str] | bool | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = _CACHE,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        files, self._transform = Files(storage_options), transform
        self._shards = open_shards(find_shards(shards, files), files, _kept(index))
        most = check_length(cache_bytes, "cache_bytes")
        self._reading = Reading(self._shards, files, None if cache is None else (os.fspath(cache), most))
        extensions = dict.fromkeys(one for shard in self._shards for one in shard.extensions)
        self._decoders = decoders_of(decode, extensions)
        if not len(self):
            raise ConfigurationError(
                f"{self!r} has no samples: no member has a name of the form key.extension.\n"
                "Check a shard with `tar --list`."
            )

    # ------------------------------------------------------------------ description

    @property
    def shards(self) -> list[str]:
        """Paths or URLs of the shards, in order."""
        return [shard.name for shard in self._shards]

    @property
    def sizes(self) -> IntArray:
        """Number of samples per shard, for `shuffle="blocks"`; shape `(shards,)`."""
        return np.array([shard.count for shard in self._shards], np.int64)

    def locate(self, indices: Iterable[int]) -> list[tuple[str, str]]:
        """Return the shard and key of samples, for example of `Loader.sample_indices`, without reading them."""
        found = [self._reading.find(index) for index in indices]
        return [(shard.name, shard.index.key(row)) for shard, row in found]

    def fingerprint(self) -> str:
        """Return a text that identifies the samples: names, sizes, and a digest of members and some content."""
        names = [base_of(shard.name) for shard in self._shards]
        some = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
        size = sum(shard.stamp.size for shard in self._shards)
        digest = digest_of([shard.label.encode("utf-8", "surrogateescape") for shard in self._shards])
        return f"{len(names)} shards {some}, {size} bytes, {len(self)} samples, {digest}"

    def __len__(self) -> int:
        return self._reading.count

    def __repr__(self) -> str:
        names = [shard.name for shard in self._shards]
        some = repr(names[0]) if len(names) == 1 else f"{names[0]!r} .. {names[-1]!r}"
        return f"Tars({some}, <{len(names)} shards, {len(self)} samples>)"

    # ------------------------------------------------------------------ reading

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Any:
        number = operator.index(index)
        return self._made(number, self._reading.get(number))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples. Neighbours are read together, and remote samples are requested at the same time."""
        data = self._reading.fetch(indices)
        return [self._made(number, data[number]) for number in map(operator.index, indices)]

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Read the next samples together, or their blocks; see `resumable.protocols.Prefetching`."""
        self._reading.prefetch(indices, upcoming)

    def _made(self, number: int, data: bytes | memoryview) -> Any:
        """Decode a sample.

        Raises:
            DataError: the bytes do not match the index, or cannot be decoded.
        """
        shard, row = self._reading.find(number)
        first, _ = shard.index.span(row)
        if not shard.index.fits(row, data):
            raise DataError(
                f"{shard.name}, byte {first}: the shard was rewritten since its index was created.\n"
                f"Sample {shard.index.key(row)!r} is no longer there. Restore the old shard, or start a new run. If "
                "the index was copied from a different shard, delete it first."
            )
        sample: dict[str, Any] = {"__key__": shard.index.key(row), "__url__": shard.name}
        for extension, start, stop in shard.index.members(row):
            body = bytes(data[start - first : stop - first])
            decoder = self._decoders.get(extension)
            sample[extension] = body if decoder is None else self._decoded(decoder, body, sample, extension, start)
        return sample if self._transform is None else self._transform(sample)

    def _decoded(
        self, decoder: Callable[[bytes], Any], body: bytes, sample: dict[str, Any], extension: str, start: int
    ) -> Any:
        try:
            return decoder(body)
        except ResumableError:
            raise
        except Exception as error:
            member = f"{sample['__key__']}.{extension}"
            raise DataError(
                f"{sample['__url__']}, byte {start}: member {member} cannot be decoded: "
                f"{type(error).__name__}: {error}.\nThe sample would be incomplete. Pass a decoder, as in "
                f'decode={{"{extension}": function}}, or None to get its bytes; or write the shard without it.'
            ) from error


def _kept(index: Any) -> str | bool:
    if index is None or index is True or index is False:
        return index is not False
    try:
        return str(os.fspath(index))
    except TypeError as error:
        raise ConfigurationError(
            f"index must be a folder, a URL, False or None, but it is {index!r}.\n"
            "Pass the folder in which to save the indexes of the shards, or None to save each next to its shard."
        ) from error


# ---------------------------------------------------------------------- decoding members by extension


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _array(data: bytes) -> NDArray[Any]:
    found: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return found


def _arrays(data: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return dict(file)


def _tensors(data: bytes) -> Any:
    import torch  # noqa: PLC0415  # only needed for .pt and .pth

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def image(mode: str | None = "RGB", *, pil: bool = False) -> Callable[[bytes], Any]:
    """Return a decoder of images with Pillow, for `decode` of `Tars`.

    Args:
        mode: Pillow mode to convert each image to, such as "RGB", "L" or "RGBA"; None keeps the image's mode.
        pil: return Pillow images. Otherwise, return arrays of shape `(height, width)` or `(height, width, channels)`,
            with 8 bits per channel for the modes above.

    Raises:
        MissingDependencyError: while decoding, if Pillow is not installed.
    """
    return partial(_image, mode=mode, pil=pil)


def _image(data: bytes, *, mode: str | None, pil: bool) -> Any:
    try:
        from PIL import Image  # noqa: PLC0415  # only needed for images
    except ImportError as error:
        raise MissingDependencyError(
            f"decoding images needs Pillow, which is not installed.\nInstall it: {pip_install('tars')}"
        ) from error
    with Image.open(io.BytesIO(data)) as opened:
        found = opened.copy() if mode is None else opened.convert(mode)
    return found if pil else np.array(found)


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id", "count"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _array,
    "npz": _arrays,
    **dict.fromkeys(("pt", "pth"), _tensors),
    **dict.fromkeys(("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "gif", "tif", "tiff", "webp"), image()),
}
_PICKLES = {"pkl", "pickle", "pyd"}


def decoders_of(decode: Any, extensions: Iterable[str]) -> dict[str, Callable[[bytes], Any]]:
    """Return the decoder of each extension that is decoded.

    For an extension with several parts, such as `seg.png`, the longest matching ending is used.

    Raises:
        ConfigurationError: `decode` is invalid, or pickles would be decoded.
    """
    given = _check(decode)
    found = {}
    for extension in extensions:
        ends = [".".join(extension.split(".")[number:]) for number in range(extension.count(".") + 1)]
        asked = next((end for end in ends if end in given), None)
        if asked is not None:
            decoder = given[asked]
        elif decode is False:
            decoder = None
        else:
            _refuse_pickle(extension, ends[-1])
            decoder = _DECODERS.get(ends[-1])
        if decoder is not None:
            found[extension] = decoder
    return found


def _check(decode: Any) -> dict[str, Callable[[bytes], Any] | None]:
    if isinstance(decode, bool):
        return {}
    right = isinstance(decode, dict) and all(
        isinstance(name, str) and (one is None or callable(one)) for name, one in decode.items()
    )
    if not right:
        raise ConfigurationError(
            f"decode must be True, False, or a dict from extensions to functions of bytes, but it is {decode!r}.\n"
            'Pass for example decode={"png": resumable.sources.image("L")}.'
        )
    return {name.lower().lstrip("."): one for name, one in decode.items()}


def _refuse_pickle(extension: str, end: str) -> None:
    if end in _PICKLES:
        raise ConfigurationError(
            f"the shards have .{extension} members, which are pickles: decoding them may run any code.\n"
            f'If you trust their author, pass decode={{"{extension}": pickle.loads}}. To get their bytes, pass '
            f'decode={{"{extension}": None}}.'
        )
