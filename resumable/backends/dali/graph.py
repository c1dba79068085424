"""The user's graph as a DALI pipeline with our samples and uniforms, and the check that it repeats the same batches."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import nvidia.dali.backend as dali_backend
from nvidia.dali import fn, pipeline_def
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from resumable._randomness.keyed import mix64
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from resumable._randomness.keyed import Words
    from resumable.backends.dali.samples import Fed
    from resumable.backends.dali.source import Source
    from resumable.protocols import Request


__all__ = ["Fetcher", "Pipeline", "check_graph", "make_pipeline", "uniforms"]


Pipeline = Any  # nvidia.dali.Pipeline; its type stubs lack most of it
_NO_CHECK = nullcontext()
_LAST = 100_000  # characters; the rest of the text includes the names of a reader's files
_REASONS = {
    "ExternalSource": "reads from a separate source, whose position is not saved",
    "PermuteBatch": "mixes the samples of a batch, which differ with the number of ranks",
    "Jitter": "uses DALI's own random numbers",
}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64
_SHIFT = np.uint64(40)  # leaves the 24 bits that a float32 has


def make_pipeline(source: Source, giver: Callable[[], Any] | list[Any], batch_size: int, *, files: bool) -> Pipeline:
    """Make the pipeline with its graph; its threads are not started yet.

    Args:
        source: graph and options.
        giver: called for each batch, or a list of batches: raw, labels and, if the graph uses them, uniforms.
        batch_size: maximum number of samples per batch.
        files: whether raw contains paths, for DALI to read.
    """

    def graph() -> Any:
        raw, *others = fn.external_source(source=giver, num_outputs=3 if source.uniforms else 2)
        # With the default, mmap, a small file takes three times as long: each mmap stops the decoding threads.
        return source.graph(fn.io.file.read(raw, dont_use_mmap=True) if files else raw, *others)

    made: Pipeline = pipeline_def(graph, **{"enable_conditionals": False, **source.options})(
        batch_size=batch_size, device_id=source.device_id
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*produces . outputs, but the output", category=Warning)
        made._build_graph()  # noqa: SLF001  # the only way to list the operators; a test pins it
    made._check_api_type_scope = _unchecked  # noqa: SLF001  # it makes a class per call: 25 µs, three times per batch
    return made


def _unchecked(_: object) -> AbstractContextManager[None]:
    """Replaces DALI's check that callers do not mix `run` with `schedule_run`; only `Engine` calls these."""
    return _NO_CHECK


class Fetcher:
    """Called by DALI for each batch. It has no reference to the pipeline, so a dropped pipeline is freed immediately.

    Args:
        count: uniforms per sample.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._source: Iterator[Fed] = iter(())
        self.asked: list[Request] = []
        self.failure: Exception | None = None

    def begin(self, source: Iterator[Fed]) -> None:
        """Use a different source from now on."""
        self._source, self.asked, self.failure = source, [], None

    def end(self) -> None:
        """Stop reading."""
        self._source = iter(())

    def __call__(self) -> tuple[Any, ...]:
        """Return the inputs of the next batch.

        Raises:
            StopIteration: there is none, or reading it failed; in that case, the batches before it are delivered first.
        """
        try:
            fed = next(self._source)
        except StopIteration:
            raise
        except Exception as error:  # raised again after the earlier batches
            self.failure = error
            raise StopIteration from error
        self.asked.append(fed.request)
        drawn = (_batch(uniforms(fed.request.keys, self._count)),) if self._count else ()
        return _batch(fed.raw), _batch(fed.labels), *drawn


def _batch(samples: NDArray[Any] | list[NDArray[Any]]) -> Any:
    """Make DALI's list of tensors, which needs no conversion: DALI takes twice as long to convert an array."""
    if isinstance(samples, list):
        return TensorListCPU([TensorCPU(sample, "") for sample in samples], "")
    return TensorListCPU(samples, "")


def uniforms(keys: Words, count: int) -> NDArray[np.float32]:
    """Compute `count` numbers in [0, 1) for every key.

    Number `j` of a key is the output of SplitMix64 after `j + 1` steps from that key, mixed once more. Its high 24
    bits, times 2**-24, fit a float32 exactly, so 1.0 never occurs. A number depends only on the key and `j`; test
    vectors pin it.

    Args:
        keys: 64-bit keys, shape `(samples,)`.
        count: numbers per key.

    Returns:
        Array of shape `(samples, count)`.
    """
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    words = mix64(mix64(keys[:, None] + steps) ^ _GOLDEN)
    return (words >> _SHIFT).astype(np.float32) * np.float32(2**-24)


def check_graph(pipeline: Pipeline, source: Source, giver: object) -> None:
    """Check that a graph repeats the same batches, and returns the named outputs.

    Raises:
        UnsupportedError: it has a random operator, or one that sees more than its sample.
        ConfigurationError: the number of nodes differs from the number of names, or it uses uniforms that do not exist.
    """
    found = pipeline.num_outputs
    if found != len(source.outputs):
        raise ConfigurationError(
            f"the pipeline returns {found} nodes, but outputs has {len(source.outputs)} names: "
            f"{list(source.outputs)}.\n"
            "A batch is a dict of the nodes with these names. Pass one name for each node."
        )
    if source.uniforms:
        _check_indices(pipeline._ops, giver, source.uniforms)  # noqa: SLF001  # as above
    faults = [fault for operator in _operators(pipeline, giver) if (fault := _fault(operator)) is not None]
    if not faults:
        return
    message = (
        "the graph has operators that would not repeat their output on a different number of ranks, or after a "
        "resume:\n  " + "\n  ".join(faults) + "\n"
        "Augmentations would change. Use the random numbers of each sample instead (source(..., uniforms=n) and u[0], "
        'u[1], ...), or accept this with on_nondeterministic="warn".'
    )
    if source.on_nondeterministic == "error":
        raise UnsupportedError(message)
    warnings.warn(message, PromiseWarning, stacklevel=4)


def _check_indices(operators: Iterable[Any], giver: object, count: int) -> None:
    """Check that the graph only uses uniforms that exist.

    Args:
        operators: of the pipeline.
        giver: the source of samples, labels and uniforms.
        count: uniforms per sample.

    Raises:
        ConfigurationError: it uses `u[count]`, or a later one.
    """
    ours = ""
    for operator in operators:
        group, call = getattr(operator, "_group", None), getattr(operator, "_op", None)
        if group is not None and group.source_desc.source is giver:
            ours = group.instances[-1].name
        taken = {**getattr(call, "_init_args", {}), **getattr(call, "_call_args", {})}.get("at_0")
        of_ours = [node.name for node in operator.inputs or ()][:1] == [ours]
        if of_ours and isinstance(taken, int) and not -count <= taken < count:
            raise ConfigurationError(
                f"the graph uses u[{taken}], but with source(..., uniforms={count}) each sample has {count} random "
                f"numbers, u[0] to u[{count - 1}].\nEvery batch would fail. Use uniforms={max(taken + 1, -taken)}."
            )


def _operators(pipeline: Pipeline, giver: object) -> Iterable[Any]:
    """Yield the operators, without our own source."""
    for operator in pipeline._ops:  # noqa: SLF001  # as above
        group = getattr(operator, "_group", None)
        if group is None or group.source_desc.source is not giver:
            yield operator


def _fault(operator: Any) -> str | None:
    """Return why an operator is not repeatable, with its name and the line that creates it; None if it is."""
    name = getattr(operator._op, "schema_name", "ExternalSource")  # noqa: SLF001  # as above
    reason = _REASONS.get(name)
    if reason is None and name.endswith("PythonFunction"):
        reason = "runs Python code that may use any random numbers"
    if reason is None:
        schema = dali_backend.GetSchema(name)
        if schema.IsStateful() or schema.HasRandomSeedArg():
            reads = "eader" in name
            reason = "reads samples in its own order" if reads else "uses DALI's own random numbers"
    return reason and f"{_title(operator, name)}: {reason}"


def _title(operator: Any, name: str) -> str:
    text = str(operator.spec)[-_LAST:]
    module, shown = re.search(r"_module: (\S+)", text), re.search(r"_display_name: (\S+)", text)
    title = f"{module[1]}.{shown[1]}".removeprefix("nvidia.dali.") if module and shown else name
    files, lines = re.search(r"_origin_stack_filename: \[(.*), \]", text), re.search(r"_lineno: \[(.*), \]", text)
    return f"{title} ({files[1].split(', ')[-1]}:{lines[1].split(', ')[-1]})" if files and lines else title
