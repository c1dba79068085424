"""Makes values of the bytes of members, by their extensions."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._distribution import pip_install
from resumable.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

__all__ = ["decoders_of", "image"]


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
