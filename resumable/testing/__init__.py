"""A conformance suite for backends: subclass `BackendTests`, say how to make a loader, and run it with pytest.

    from resumable.testing import BackendTests

    class TestMyReader(BackendTests):
        @staticmethod
        def make(**options):
            return resumable.wrap(MyReader("data"), **options)

        others = {"length": lambda: resumable.wrap(MyReader("other data"))}

Everything is compared with an uninterrupted run, over the whole rest of the run, from a state taken at every step.
"""

from __future__ import annotations

from resumable.testing.backend_tests import BackendTests
from resumable.testing.runs import Run, digest, rest_of_run

__all__ = ["BackendTests", "Run", "digest", "rest_of_run"]
