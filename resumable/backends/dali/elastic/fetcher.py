"""What DALI calls for the inputs of each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvidia.dali.tensors import TensorCPU, TensorListCPU

from resumable.backends.dali.elastic.uniforms import uniforms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from resumable.backends.dali.elastic.inputs import Fed
    from resumable.protocols import Request

__all__ = ["Fetcher"]


class Fetcher:
    """Called by DALI for each batch. It knows nothing of the pipeline, so that dropping that frees it at once.

    Args:
        count: uniforms per sample.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._source: Iterator[Fed] = iter(())
        self.asked: list[Request] = []
        self.failure: Exception | None = None

    def begin(self, source: Iterator[Fed]) -> None:
        """Draw from another source from now on."""
        self._source, self.asked, self.failure = source, [], None

    def end(self) -> None:
        """Draw no more."""
        self._source = iter(())

    def __call__(self) -> tuple[Any, ...]:
        """Return the inputs of the next batch.

        Raises:
            StopIteration: there is none, or reading it failed; then the batches before it are delivered first.
        """
        try:
            fed = next(self._source)
        except StopIteration:
            raise
        except Exception as error:  # raised again when it is its turn
            self.failure = error
            raise StopIteration from error
        self.asked.append(fed.request)
        drawn = (_batch(uniforms(fed.request.keys, self._count)),) if self._count else ()
        return _batch(fed.raw), _batch(fed.labels), *drawn


def _batch(samples: NDArray[Any] | list[NDArray[Any]]) -> Any:
    """Make DALI's list of tensors, which it takes as it is: looking at an array itself, it takes twice as long."""
    if isinstance(samples, list):
        return TensorListCPU([TensorCPU(sample, "") for sample in samples], "")
    return TensorListCPU(samples, "")
