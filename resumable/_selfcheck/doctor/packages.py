"""Which versions are installed; nothing is imported to find out."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import TYPE_CHECKING

from resumable._distribution import DISTRIBUTION, pip_install
from resumable._version import __version__

if TYPE_CHECKING:
    from resumable._selfcheck.doctor.findings import Findings

__all__ = ["look_at_packages"]

_PACKAGES = {  # and the extra that installs it
    "numpy": None,
    "fsspec": None,
    "torch": "torch",
    "pytorch-lightning": "lightning",
    "lightning": None,
    "nvidia-dali-cuda120": "dali",
    "ffcv": "ffcv",
    "tensorflow-datasets": "tfds",
    "tensorflow": "tf",
    "tensorflow-cpu": None,
    "accelerate": "accelerate",
    "transformers": "transformers",
    "datasets": None,
    "torchdata": None,
    "rich": "cli",
    "matplotlib": "chaos",
}
_SAME = {"tensorflow-cpu": "tensorflow"}
_LEAST = {"numpy": (1, 24), "pytorch-lightning": (2, 2), "lightning": (2, 2)}
_WHY = {
    "numpy": "The randomness of a sample cannot be kept apart from the trainer's.",
    "pytorch-lightning": "It does not save the states of loaders.",
    "lightning": "It does not save the states of loaders.",
}
_OTHERS = "resumable"  # another project, which has the same import name


def look_at_packages(found: Findings) -> None:
    """Look at Python, this package, and those of its extras."""
    found.known["python"] = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    found.known["resumable"] = __version__
    for name, extra in _PACKAGES.items():
        version = _version(name)
        if version is None:
            if extra is not None:
                found.known[name] = f"not installed (extra {extra})"
            continue
        found.known.pop(_SAME.get(name, ""), None)  # which is the same, and not missing
        found.known[name] = version
        if name in _LEAST and _numbers(version) < _LEAST[name]:
            least = ".".join(map(str, _LEAST[name]))
            found.breaks(f"{name} {version} is too old. {_WHY[name]} Install {least} or newer.")
    found.known["an extra"] = pip_install("NAME")
    _look_at_others(found)


def _look_at_others(found: Findings) -> None:
    if (version := _version(_OTHERS)) is not None:
        found.breaks(
            f"another project with the import name {_OTHERS} is installed, in the version {version}, and may stand in "
            f"place of {DISTRIBUTION}. Uninstall both, then install {DISTRIBUTION}."
        )
    one, other = _version("pytorch-lightning"), _version("lightning")
    if one is not None and other is not None and one != other:
        found.mind(
            f"pytorch-lightning {one} and lightning {other} are both installed. Import one of them only: their "
            "classes are not the same."
        )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
