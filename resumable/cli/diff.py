"""`resumable diff`: which parts of two checkpoints differ."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from resumable._content import split
from resumable._inspect import diff
from resumable.cli.show import Page, cut, print_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from resumable._inspect import Diff, TensorDifference
    from resumable.cli.show import Parser

__all__ = ["fill"]

_MOST = 20
_EPILOG = """Parts are matched by path, such as optimizer.state.0.exp_avg. The checkpoints can be of any kinds that
`resumable inspect` reads. No code in them runs, and no file is written.

examples:
  resumable diff before.ckpt after.ckpt
  resumable diff runs/7/step-000000000100 runs/8/step-000000000100

exit status: 0 if all parts are equal, 1 if some differ, 2 if they cannot be compared."""


def fill(parser: Parser) -> None:
    """Add the options of `resumable diff` to a parser."""
    parser.description = "Show which parts of two checkpoints differ, and by how much."
    parser.epilog = _EPILOG
    parser.add_argument("a", help="a file, a folder or a URL")
    parser.add_argument("b", help="the second checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--all", action="store_true", help="do not shorten lists, and list equal parts")
    parser.set_defaults(act=_show)


def _show(given: Namespace, _: Sequence[str]) -> int:
    found = diff(given.a, given.b)
    if given.json:
        print_json(found.as_dict())
    else:
        _print(Page(), found, whole=given.all)
    return 0 if found.is_equal else 1


def _print(page: Page, found: Diff, *, whole: bool) -> None:
    page.text(f"a: {found.a}", f"b: {found.b}", *found.notes)
    for state in found.states:
        page.text("", f"Loader state at {state.where or 'the top level'} differs:")
        page.table(("field", "a", "b"), [(one.where, one.a, one.b) for one in state.fields])
    _table(page, "Tensors differ:", _TENSOR, [_row(one) for one in found.tensors], whole=whole)
    _table(page, "Values differ:", ("path", "a", "b"), [(one.where, one.a, one.b) for one in found.values], whole=whole)
    _table(page, "Only in a:", ("path",), [(place,) for place in found.only_a], whole=whole)
    _table(page, "Only in b:", ("path",), [(place,) for place in found.only_b], whole=whole)
    if whole:
        _table(page, "Equal:", ("path",), [(place,) for place in found.equal], whole=True)
    page.text("", _summary(found))


_TENSOR = ("path", "type", "elements", "differ", "largest")


def _row(one: TensorDifference) -> tuple[Any, ...]:
    (shape_a, shape_b), (type_a, type_b) = one.shapes, one.dtypes
    if one.elements is None:
        return one.where, f"{type_a} {list(shape_a)}, {type_b} {list(shape_b)}", "", "", ""
    largest = "" if one.largest is None else f"{one.largest:.3g}"
    return one.where, f"{type_a} {list(shape_a)}", one.elements, one.differing, largest


def _table(page: Page, title: str, head: Sequence[str], rows: Sequence[Any], *, whole: bool) -> None:
    if rows:
        shown, more = cut(rows, _MOST, whole=whole)
        page.text("", title)
        page.table(head, shown, numbers=("elements", "differ", "largest"))
        if more:
            page.text(more)


def _summary(found: Diff) -> str:
    differing = len(found.tensors) + len(found.states) + len(found.values) + len(found.only_a) + len(found.only_b)
    by_part = Counter((split(place) or ["all"])[0] or "all" for place in found.equal)
    equal = ", ".join(f"{part} {count}" for part, count in by_part.items())
    if not differing:
        return f"Equal: all {len(found.equal)} parts ({equal})."
    return f"Different: {differing} parts; equal: {len(found.equal)}{f' ({equal})' if equal else ''}."
