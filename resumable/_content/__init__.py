"""Content of any kind: its leaves, how two contents compare, and digests of it.

`leaves.py` takes content apart: each leaf has a dotted path and a text that differs if the leaf does. Chaos runs take
checkpoints apart by it, `resumable check` takes batches, and `resumable diff` names parts and compares values by it, so
a part has the same name and the same meaning in all reports. `canary.py` and `elements.py` are encoders of the leaves
of one element, for digests that states hold.

>>> one, other = parts_of({"model": {"bias": 1.0, "weight": 2.0}}), parts_of({"model": {"bias": 1.0, "weight": 3.0}})
>>> list(compare(one, other))
[Difference(path='model.weight', a='2.0', b='3.0')]

- A tensor or an array is compared by type, shape and bytes; what is no number (NaN) equals each other one, and -0.0 is
  not 0.0.
- Dicts are compared by their keys, in no order; lists and tuples by their elements; sets by theirs, in no order.
- Objects are compared by `state_dict()` where they have it, by their attributes where Python shows them, else by what
  they would give to pickle. No `__repr__` of a class that is not known counts, nor a pickle: neither need be the same
  in two processes.
- What cannot be read is not compared, and its text says so.
"""

from __future__ import annotations

from resumable._content.arrays import Array, digest_arrays
from resumable._content.canary import Canary
from resumable._content.compare import Difference, compare, split, topmost
from resumable._content.leaves import (
    UNCOMPARED,
    Uncompared,
    digest_of,
    dotted,
    leaves_of,
    parts_of,
    step,
    text_of,
    walk,
)

__all__ = [
    "UNCOMPARED",
    "Array",
    "Canary",
    "Difference",
    "Uncompared",
    "compare",
    "digest_arrays",
    "digest_of",
    "dotted",
    "leaves_of",
    "parts_of",
    "split",
    "step",
    "text_of",
    "topmost",
    "walk",
]
