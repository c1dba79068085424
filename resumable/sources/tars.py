"""Tars: shards of WebDataset, whose samples are read by their index."""

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


# Makes values of the bytes of members, by their extensions.


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _array(data: bytes) -> NDArray[Any]:
    found: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return found


def _arrays(data: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return dict(file)


def _tensors(data: bytes) -> Any:
    import torch  # noqa: PLC0415  # for its own files only

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def image(mode: str | None = "RGB", *, pil: bool = False) -> Callable[[bytes], Any]:
    """Return a decoder of images, by Pillow, for `decode` of `Tars`.

    Args:
        mode: of Pillow's, to which each image is converted: "RGB", "L", "RGBA" and so on; None leaves it as it is.
        pil: give images of Pillow's; else arrays of shape `(height, width)` or `(height, width, channels)`, 8 bits
            per channel for the modes above.

    Raises:
        MissingDependencyError: while decoding, if Pillow is not installed.
    """
    return partial(_image, mode=mode, pil=pil)


def _image(data: bytes, *, mode: str | None, pil: bool) -> Any:
    try:
        from PIL import Image  # noqa: PLC0415  # for images only
    except ImportError as error:
        raise MissingDependencyError(f"images are decoded by Pillow.\nInstall it: {pip_install('tars')}") from error
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

    An extension of several parts, as `seg.png`, is looked up as a whole, then as what follows each of its dots.

    Raises:
        ConfigurationError: `decode` is none of what it can be, or pickles would be decoded.
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
            f"decode must be True, False, or functions of bytes by extension, but it is {decode!r}.\n"
            'What a sample has could not be known. Give for instance decode={"png": resumable.sources.image("L")}.'
        )
    return {name.lower().lstrip("."): one for name, one in decode.items()}


def _refuse_pickle(extension: str, end: str) -> None:
    if end in _PICKLES:
        raise ConfigurationError(
            f"the shards have members .{extension}, which are pickles: reading them runs whatever code they name.\n"
            f'If you trust who wrote them, give decode={{"{extension}": pickle.loads}}; decode={{"{extension}": None}} '
            "leaves their bytes as they are."
        )


_CACHE = 1 << 34  # bytes


class Tars:
    """Shards of WebDataset as samples by index; for `wrap`, a `DataLoader`, `resumable.mix`, or by itself.

    A sample is a dict: `"__key__"`, `"__url__"` (its shard), and a value for each of its members by extension, such as
    `"jpg"` and `"json"`. Members belong together as in webdataset: those that follow one another with the same name up
    to the first dot.

    Each shard is scanned once, and an index of its samples is kept in a file beside it, or in the folder `index`. A
    sample is then one read at its place, and a state says no more of the data than a digest. What changed since its
    index was made is scanned again. `sizes` are the samples of each shard, so that `shuffle="blocks"` works.

    Args:
        shards: path or URL of a shard, a pattern with `{000..099}`, `{a,b}`, `*`, `?` or `[...]`, or a list of these.
            URLs are all that fsspec knows, such as `s3://bucket/train-{000..099}.tar`.
        decode: True makes values of bytes by extension: `json`, `txt`, `cls` (an integer), `npy`, `npz`, `pt` (without
            code), and images as arrays of shape `(height, width, 3)`; other members stay bytes. False leaves all bytes.
            A dict has functions of bytes for extensions, None for bytes; the others are decoded as with True.
        transform: makes of each sample, after decoding, what is returned.
        index: folder or URL where the indices are kept; None for that of each shard, False to keep none.
        cache: local folder for blocks of samples. With an order in blocks (`shuffle="blocks"`), each block is then read
            from its shard as one piece, ahead of its samples, and once for all processes of a machine that share the
            folder. What is in it stays for later runs. None reads the samples of a batch, neighbours at once.
        cache_bytes: how large the folder may become; the oldest pieces go first. It needs room for two windows.
        storage_options: for the file system of URLs, as fsspec takes them.

    Raises:
        ConfigurationError: there is no such shard; it is compressed, cut, damaged, or no tar; or it has pickles.
        MissingDependencyError: braceexpand, Pillow or a file system is not installed.
        DataError: while reading, if a shard was written again, cut or removed since, or a member cannot be decoded.
    """

    def __init__(  # noqa: PLR0913  # where data are, and where to keep what; each has a default
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
                f"{self!r} has no samples: no member is named key.extension.\nThere would be nothing to read. "
                "Look into a shard with `tar --list`."
            )

    # ------------------------------------------------------------------ what there is

    @property
    def shards(self) -> list[str]:
        """Paths or URLs of the shards, in their order."""
        return [shard.name for shard in self._shards]

    @property
    def sizes(self) -> IntArray:
        """Samples of each shard, as `shuffle="blocks"` takes them; shape `(shards,)`."""
        return np.array([shard.count for shard in self._shards], np.int64)

    def locate(self, indices: Iterable[int]) -> list[tuple[str, str]]:
        """Return the shard and the key of each sample, as of those of `Loader.sample_indices`; none is read."""
        found = [self._reading.find(index) for index in indices]
        return [(shard.name, shard.index.key(row)) for shard, row in found]

    def fingerprint(self) -> str:
        """Return what tells these samples from others: names, sizes, members and some content of all shards."""
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
        """Return several samples; neighbours are read at once, and those of remote shards at the same time."""
        data = self._reading.fetch(indices)
        return [self._made(number, data[number]) for number in map(operator.index, indices)]

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Read samples that will be asked for one by one, and blocks; see `resumable.protocols.Prefetching`."""
        self._reading.prefetch(indices, upcoming)

    def _made(self, number: int, data: bytes | memoryview) -> Any:
        """Make a sample of its bytes.

        Raises:
            DataError: they are not those that the index was made of, or cannot be decoded.
        """
        shard, row = self._reading.find(number)
        first, _ = shard.index.span(row)
        if not shard.index.fits(row, data):
            raise DataError(
                f"{shard.name}, byte {first}: the shard was written again since its index was made.\n"
                f"The sample {shard.index.key(row)!r} is not there any more. Start again, without the index where "
                "that was copied along with another shard; or put the old shard back."
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
                f"{sample['__url__']}, byte {start}: the member {member} cannot be decoded: "
                f"{type(error).__name__}: {error}.\nThe sample would be incomplete. Give a decoder for it, as in "
                f'decode={{"{extension}": function}}, or None to have its bytes; or write the shard without it.'
            ) from error


def _kept(index: Any) -> str | bool:
    if index is None or index is True or index is False:
        return index is not False
    try:
        return str(os.fspath(index))
    except TypeError as error:
        raise ConfigurationError(
            f"index must be a folder, a URL, False or None, but it is {index!r}.\n"
            "Where the indices of the shards are to be kept could not be known."
        ) from error
