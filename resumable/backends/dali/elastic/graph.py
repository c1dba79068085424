"""The user's graph as a DALI pipeline with our samples, refused where it would not give the same stream again."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import nvidia.dali.backend as dali_backend
from nvidia.dali import fn, pipeline_def

from resumable.backends.dali.elastic.uniforms import check_indices
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from resumable.backends.dali.elastic.source import Source

__all__ = ["Pipeline", "check_graph", "make_pipeline"]

Pipeline = Any  # nvidia.dali.Pipeline, whose types leave out most of it


def make_pipeline(source: Source, giver: Callable[[], Any] | list[Any], batch_size: int, *, files: bool) -> Pipeline:
    """Make the pipeline; its graph is there, and its threads are not started.

    Args:
        source: graph and options.
        giver: called for each batch, or a list of batches: raw, labels and, where the graph has them, uniforms.
        batch_size: most samples per batch.
        files: raw is paths, for DALI to read.
    """

    def graph() -> Any:
        raw, *others = fn.external_source(source=giver, num_outputs=3 if source.uniforms else 2)
        # Mapped into memory, as by default, a small file takes thrice as long: each map stops the threads that decode.
        return source.graph(fn.io.file.read(raw, dont_use_mmap=True) if files else raw, *others)

    made: Pipeline = pipeline_def(graph, **{"enable_conditionals": False, **source.options})(
        batch_size=batch_size, device_id=source.device_id
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*produces . outputs, but the output", category=Warning)
        made._build_graph()  # noqa: SLF001  # there is no public way to see the operators; a test pins it
    made._check_api_type_scope = _unchecked  # noqa: SLF001  # it makes a class per call: 25 us, three times per batch
    return made


def _unchecked(_: object) -> AbstractContextManager[None]:
    """Stand for DALI's check that a caller does not mix `run` with `schedule_run`; `Engine` alone calls."""
    return _NO_CHECK


_NO_CHECK = nullcontext()


def check_graph(pipeline: Pipeline, source: Source, giver: object) -> None:
    """Refuse a graph that would not give the same batches again, or not those that were named.

    Raises:
        UnsupportedError: it has a random operator, or one that sees more than its sample.
        ConfigurationError: it returns another number of nodes than there are names, or takes more uniforms than there
            are.
    """
    found = pipeline.num_outputs
    if found != len(source.outputs):
        raise ConfigurationError(
            f"the pipeline returns {found} nodes, but outputs has {len(source.outputs)} names: "
            f"{list(source.outputs)}.\n"
            "A batch is a dict of the nodes under these names. Give one name for each node."
        )
    if source.uniforms:
        check_indices(pipeline._ops, giver, source.uniforms)  # noqa: SLF001  # as above
    faults = [told for operator in _operators(pipeline, giver) if (told := _fault(operator)) is not None]
    if not faults:
        return
    message = (
        "the graph has operators that would not do the same again on another number of ranks, or after a resume:\n  "
        + "\n  ".join(faults)
        + "\nAugmentations could not be repeated. Draw from the uniforms of each sample instead (source(..., "
        'uniforms=n) and u[0], u[1], ...), or accept it with on_nondeterministic="warn".'
    )
    if source.on_nondeterministic == "error":
        raise UnsupportedError(message)
    warnings.warn(message, PromiseWarning, stacklevel=4)


def _operators(pipeline: Pipeline, giver: object) -> Iterable[Any]:
    """Yield the operators without our own source."""
    for operator in pipeline._ops:  # noqa: SLF001  # as above
        group = getattr(operator, "_group", None)
        if group is None or group.source_desc.source is not giver:
            yield operator


def _fault(operator: Any) -> str | None:
    """Say what is wrong with an operator, by its name and the line that it is made in."""
    name = getattr(operator._op, "schema_name", "ExternalSource")  # noqa: SLF001  # as above
    reason = _REASONS.get(name)
    if reason is None and name.endswith("PythonFunction"):
        reason = "runs Python that may draw from any generator"
    if reason is None:
        schema = dali_backend.GetSchema(name)
        if schema.IsStateful() or schema.HasRandomSeedArg():
            reads = "eader" in name
            reason = "reads samples in an order of its own" if reads else "draws from a generator of DALI's own"
    return reason and f"{_title(operator, name)}: {reason}"


_REASONS = {
    "ExternalSource": "reads from a source of its own, at a place that is not saved",
    "PermuteBatch": "mixes the samples of a batch, which are others on another number of ranks",
    "Jitter": "draws from a generator of DALI's own",
}


def _title(operator: Any, name: str) -> str:
    text = str(operator.spec)[-_LAST:]
    module, shown = re.search(r"_module: (\S+)", text), re.search(r"_display_name: (\S+)", text)
    title = f"{module[1]}.{shown[1]}".removeprefix("nvidia.dali.") if module and shown else name
    files, lines = re.search(r"_origin_stack_filename: \[(.*), \]", text), re.search(r"_lineno: \[(.*), \]", text)
    return f"{title} ({files[1].split(', ')[-1]}:{lines[1].split(', ')[-1]})" if files and lines else title


_LAST = 100_000  # characters; the names of a reader's files stand among the rest
