"""What nested objects are compared by: their leaves, each with a dotted path and a text that differs where it does.

Chaos runs take checkpoints apart by this, `resumable check` takes batches, and `resumable diff` names places and
compares values by it, so that a part has the same name and the same meaning in all reports.

>>> one, other = parts_of({"model": {"bias": 1.0, "weight": 2.0}}), parts_of({"model": {"bias": 1.0, "weight": 3.0}})
>>> compare(one, other).differing
['model.weight']

- A tensor or an array is compared by type, shape and bytes; what is no number (NaN) equals each other one, and -0.0 is
  not 0.0.
- Dicts are compared by their keys, in no order; lists and tuples by their elements; sets by theirs, in no order.
- Objects are compared by `state_dict()` where they have it, by their attributes where Python shows them, else by what
  they would give to pickle. No `__repr__` of a class that is not known counts, nor a pickle: neither need be the same
  in two processes.
- What cannot be read is not compared, and its text says so.
"""

from __future__ import annotations

from resumable._parts.arrays import Array, digest_arrays
from resumable._parts.leaves import digest_of, leaves_of, parts_of
from resumable._parts.paths import Difference, compare, split, topmost
from resumable._parts.texts import UNCOMPARED, Uncompared, dotted, step, text_of

__all__ = [
    "UNCOMPARED",
    "Array",
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
]
