"""`resumable inspect`: the content of a checkpoint, and the position of its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._inspect import inspect
from resumable.cli.show import Page, cut, in_bytes, print_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from resumable._inspect import Inspection, LoaderState, Part
    from resumable.cli.show import Parser

__all__ = ["fill"]

_MOST = 30
_EPILOG = """A checkpoint is a file of torch.save, Lightning, safetensors, NumPy or JSON, a pickle, or a folder of
CheckpointStore, torch.distributed.checkpoint, the Hugging Face Trainer or Accelerate.
It can also be a URL that fsspec knows.
No code in it runs, and no file is written.

examples:
  resumable inspect checkpoints
  resumable inspect s3://runs/7/model.ckpt --json

exit status: 0, or 2 if the checkpoint cannot be read."""


def fill(parser: Parser) -> None:
    """Add the options of `resumable inspect` to a parser."""
    parser.description = "Show the content of a checkpoint, and the position of its data."
    parser.epilog = _EPILOG
    parser.add_argument("checkpoint", help="a file, a folder or a URL")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--all", action="store_true", help="do not shorten lists, and show fingerprints")
    parser.set_defaults(act=_show)


def _show(given: Namespace, _: Sequence[str]) -> int:
    found = inspect(given.checkpoint)
    if given.json:
        print_json(found.as_dict())
        return 0
    page = Page()
    page.text(f"{found.path}: {found.kind}, {in_bytes(found.size)}", *found.notes)
    if found.steps:
        _show_steps(page, found, whole=given.all)
    states, more = cut(found.states, _MOST, whole=given.all)
    for state in states:
        page.text("", f"Loader state at {state.where or 'the top level'}")
        page.pairs(_facts(state, whole=given.all))
    if more or not found.states:
        page.text("", more or "It contains no state of a Loader.")
    if any(part.name for part in found.parts) and not any(not state.where for state in found.states):
        _show_parts(page, found, whole=given.all)
    return 0


def _facts(state: LoaderState, *, whole: bool) -> list[tuple[str, Any]]:
    if state.problem and not state.kind:
        return [("problem", state.problem)]
    step = (
        f"{state.step} of {state.steps_in_epoch}, {state.percent:g} %" if state.percent is not None else f"{state.step}"
    )
    facts = [
        ("source", f"{state.source} ({state.kind})"),
        ("epoch", state.epoch),
        ("step", step),
        ("global step", state.global_step),
        ("samples seen", state.samples_seen),
        ("seed", state.seed),
        *([("name", state.name)] if state.name else []),
        ("ranks", state.world_size if state.rank is None else f"{state.world_size}; this is rank {state.rank}"),
        ("batch", f"{state.global_batch} over all ranks, batch_size={state.batch_size}, tail={state.tail}"),
        ("order", f"{state.order} ({_spec(state)})" if whole else state.order),
        ("data", "unknown length" if state.length is None else f"{state.length} samples"),
        *([("fingerprint", _fingerprint(state.fingerprint))] if whole else []),
        ("format", state.format),
    ]
    facts += [("also at", place) for place in state.also]
    return [*facts, ("problem", state.problem)] if state.problem else facts


def _spec(state: LoaderState) -> str:
    return ", ".join(f"{name}={value}" for name, value in (state.sampler or {}).items())


def _fingerprint(data: Any) -> str:
    if data is None:
        return "none"
    return ", ".join(f"{name}: {value}" for name, value in data.items()) if isinstance(data, dict) else str(data)


def _show_steps(page: Page, found: Inspection, *, whole: bool) -> None:
    steps, more = cut(found.steps[::-1], _MOST, whole=whole)
    rows = [(one.step, "" if one.size is None else in_bytes(one.size), one.problem or "intact") for one in steps]
    page.table(("step", "size", "state"), rows, numbers=("step", "size"))
    if more:
        page.text(more)


def _show_parts(page: Page, found: Inspection, *, whole: bool) -> None:
    page.text("")
    parts, more = cut(found.parts, _MOST, whole=whole)
    page.table(("part", "type", "tensors", "bytes", "values"), map(_row, parts), numbers=("tensors", "bytes", "values"))
    if more:
        page.text(more)
    for part in parts:
        if part.objects:
            page.text(f"{part.name} contains objects that are not loaded: {', '.join(part.objects)}")


def _row(part: Part) -> tuple[Any, ...]:
    problem = f", {part.problem}" if part.problem else ""
    return (
        part.name,
        part.type + problem,
        part.tensors or "",
        in_bytes(part.bytes) if part.bytes else "",
        part.values or "",
    )
