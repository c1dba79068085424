"""The demo's first output, before imports that take seconds: what it will do, and what it leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .catalogue import SOURCES, missing_extras, pip_install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .options import Options

__all__ = ["announce"]


def announce(options: Options) -> str:
    """Describe the runs, and list each source whose framework is missing, with the command that installs it."""
    return "\n".join([*_planned(options), *_left_out(options)]) + "\n"


def _planned(options: Options) -> Iterator[str]:
    number = len(options.sources)
    yield (
        f"{number} source{'s' * (number != 1)}, each trained twice: a baseline run, and a run that is killed "
        f"{options.kills} time{'s' * (options.kills != 1)} with SIGKILL and resumed."
    )
    yield f"{options.jobs} run in parallel. The first result takes half a minute, mostly to import torch."


def _left_out(options: Options) -> Iterator[str]:
    if not options.all_installed:
        return
    missing = {source.label: missing_extras(source) for source in SOURCES.values() if missing_extras(source)}
    if missing:
        yield "Left out, because a package is not installed:"
        for label, extras in missing.items():
            yield f"  {label}: {pip_install(*extras)}"
        yield "In a clone of the repository, `make demo-all` installs everything and runs all sources."
