"""`resumable samples`: which samples are in a batch, from a checkpoint alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resumable._inspect import samples
from resumable._selfcheck.scripts import call
from resumable.cli.show import Help, Page, print_json, users_function

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

__all__ = ["add_samples"]

_EPILOG = """The order is computed from the state; no data are read, nothing in the checkpoint is executed, and no file
is written but the index of a shard that is named by --tars and has none. Steps count from 0, with the global batch of
the state, as Loader.sample_indices counts them.

exit status: 0, or 2 if there is no such batch, or the state does not say its samples."""


def add_samples(commands: Any) -> None:
    """Add `samples` to the commands of a parser."""
    parser = commands.add_parser(
        "samples",
        help="list the samples of any batch, past or future, from a checkpoint alone",
        epilog=_EPILOG,
        formatter_class=Help,
    )
    add = parser.add_argument
    add("checkpoint", help="a file, a folder or a URL, as `resumable inspect` takes it")
    add("--epoch", type=int, required=True, metavar="E", help="from 0")
    add("--step", type=int, required=True, metavar="S", help="number of the batch in the epoch, from 0")
    add("--rank", type=int, metavar="R", help="whose part of the batch (default: all of it)")
    add("--loader", metavar="NAME", help="name or place of a state, where the checkpoint has several")
    add("--order", choices=("feistel", "torch"), help="as it was given to wrap; asked for where it is needed")
    what = parser.add_mutually_exclusive_group().add_argument
    what("--tars", metavar="SHARDS", help="WebDataset shards that the run reads, to name each sample: a-{00..09}.tar")
    what(
        "--source", metavar="SPEC", help="script.py:name of a function that makes the run's source or loader, likewise"
    )
    add("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(act=_show)


@contextmanager
def _source(given: Namespace) -> Iterator[Any]:
    """Give the source that names the samples; what a script's prints goes to standard error."""
    if given.source is not None:
        with users_function(given.source, ()) as make:
            made = call(make)
            yield getattr(made, "dataset", made)  # of a loader
    elif given.tars is None:
        yield None
    else:
        from resumable.sources import Tars  # noqa: PLC0415  # only where they are named

        yield Tars(given.tars, decode=False)


def _show(given: Namespace, _: Sequence[str]) -> int:
    with _source(given) as source:
        found = samples(
            given.checkpoint,
            epoch=given.epoch,
            step=given.step,
            rank=given.rank,
            loader=given.loader,
            order=given.order,
            source=source,
        )
    if given.json:
        print_json(found.as_dict())
        return 0
    page = Page()
    whose = "the whole batch" if found.rank is None else f"rank {found.rank} of {found.world_size}"
    page.text(
        f"State at {found.where or 'the top'}; epoch {found.epoch}, step {found.step}, {whose}: "
        f"{len(found.indices)} samples",
        *found.notes,
        " ".join(map(str, found.indices)),
        *(f"{index}: {words}" for index, words in zip(found.indices, found.words, strict=False)),
    )
    return 0
