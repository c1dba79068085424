"""What the demo says before it imports anything that takes seconds: what it will do, and what it leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .catalogue import SOURCES, missing_extras, pip_install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .options import Options

__all__ = ["announce"]


def announce(options: Options) -> str:
    """Describe the runs, and name each source that is left out as its framework is missing, with what installs it."""
    return "\n".join([*_planned(options), *_left_out(options)]) + "\n"


def _planned(options: Options) -> Iterator[str]:
    number = len(options.sources)
    yield (
        f"{number} source{'s' * (number != 1)} to train from, each twice: a baseline run, and a run that is killed "
        f"{options.kills} time{'s' * (options.kills != 1)} with SIGKILL and resumed."
    )
    yield f"{options.jobs} at a time. The first verdict takes half a minute, most of which torch needs to be imported."


def _left_out(options: Options) -> Iterator[str]:
    if not options.all_installed:
        return
    missing = {source.label: missing_extras(source) for source in SOURCES.values() if missing_extras(source)}
    if missing:
        yield "Left out, because what they need is not installed:"
        for label, extras in missing.items():
            yield f"  {label}: {pip_install(*extras)}"
        yield "In a clone of the repository, `make demo-all` installs everything and runs all sources."
