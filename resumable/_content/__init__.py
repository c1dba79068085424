"""Content of any kind: its leaves, comparison of two contents, and digests.

`leaves.py` splits content into leaves: each has a dotted path, and a text that differs if the leaf does. Chaos runs use
it to split checkpoints, `resumable check` to split batches, and `resumable diff` to compare values. So a part has the
same name and the same meaning in all reports. `canary.py` and `elements.py` encode the leaves of one element, for the
digests in states.

>>> one, other = parts_of({"model": {"bias": 1.0, "weight": 2.0}}), parts_of({"model": {"bias": 1.0, "weight": 3.0}})
>>> list(compare(one, other))
[Difference(path='model.weight', a='2.0', b='3.0')]

- Tensors and arrays are compared by type, shape and bytes. All NaN are equal, and -0.0 differs from 0.0.
- Dicts are compared by their keys, in any order; lists and tuples by their elements; sets by their elements, in any
  order.
- Objects are compared with `state_dict()` if they have it, else by the attributes that Python shows, else by the values
  that they pass to pickle. The `__repr__` of an unknown class is not used, and neither is a pickle: both may differ
  between processes.
- Anything that cannot be read is not compared, and its text says so.
"""

from __future__ import annotations

from resumable._content.arrays import Array, digest_arrays
from resumable._content.canary import END, Canary
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
    "END",
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
