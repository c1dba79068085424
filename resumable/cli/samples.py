"""`resumable samples`: the samples of a batch, from a checkpoint alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resumable._inspect import samples
from resumable._selfcheck.scripts import call
from resumable.cli.show import Page, print_json
from resumable.cli.users import users_function

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from resumable.cli.show import Parser

__all__ = ["fill"]

_EPILOG = """The order is computed from the state. No data is read, no code in the checkpoint runs, and no file is
written, except the index of a shard in --tars that has none. Steps count from 0, as in Loader.sample_indices.

examples:
  resumable samples checkpoints --epoch 7 --step 3
  resumable samples model.ckpt --epoch 0 --step 9 --source train.py:make_loader

exit status: 0, or 2 if there is no such batch, or the state does not determine its samples."""


def fill(parser: Parser) -> None:
    """Add the options of `resumable samples` to a parser."""
    parser.description = "List the samples of any batch, past or future, from a checkpoint alone."
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("checkpoint", help="a file, a folder or a URL, as for `resumable inspect`")
    add("--epoch", type=int, required=True, metavar="E", help="from 0")
    add("--step", type=int, required=True, metavar="S", help="number of the batch in the epoch, from 0")
    add("--rank", type=int, metavar="R", help="the rank whose part of the batch to list (default: the global batch)")
    add("--loader", metavar="NAME", help="name or path of the state, if the checkpoint contains several")
    add("--order", choices=("feistel", "torch"), help="the order passed to wrap; an error says if it is needed")
    what = parser.add_mutually_exclusive_group().add_argument
    what("--tars", metavar="SHARDS", help="the run's WebDataset shards, to show the key of each sample: a-{00..09}.tar")
    what(
        "--source",
        metavar="SPEC",
        help="script.py:name of a function that returns the run's source or loader, to describe each sample; a large "
        "mixture needs it",
    )
    add("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(act=_show)


@contextmanager
def _source(given: Namespace) -> Iterator[Any]:
    """Yield the source that describes the samples; a script's output goes to standard error."""
    if given.source is not None:
        with users_function(given.source, ()) as make:
            made = call(make)
            yield getattr(made, "dataset", made)  # of a loader
    elif given.tars is None:
        yield None
    else:
        from resumable.sources import Tars  # noqa: PLC0415  # rarely needed

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
    whose = "the global batch" if found.rank is None else f"rank {found.rank} of {found.world_size}"
    page.text(
        f"State at {found.where or 'the top level'}; epoch {found.epoch}, step {found.step}, {whose}: "
        f"{len(found.indices)} samples",
        *found.notes,
        " ".join(map(str, found.indices)),
        *(f"{index}: {words}" for index, words in zip(found.indices, found.words, strict=False)),
    )
    return 0
