"""DALI fed by our sampler: the promises of every backend, and what goes through it."""

from __future__ import annotations

import inspect
import random
import sys
from typing import TYPE_CHECKING, Any

import dali_images
import numpy as np
import nvidia.dali.backend as dali_backend
import pytest
import torch
from dali_images import COUNT, Bytes, augment, encoded, images, pixels, plain, wrap, write
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from nvidia.dali.types import PipelineAPIType

import resumable
from resumable.backends.dali.graph import make_pipeline, uniforms
from resumable.backends.dali.source import source
from resumable.errors import PromiseWarning, SampleError
from resumable.testing import BackendTests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class TestFolder(BackendTests):
    """Files, read by DALI's own threads; the last batch of an epoch is short."""

    make = staticmethod(wrap)
    shared = False
    others = {
        "files": lambda: wrap(images(COUNT + 1)),
        "batch": lambda: wrap(batch_size=6),
        "sampler": lambda: wrap(shuffle=False),
        "kind": lambda: resumable.wrap(list(range(COUNT)), batch_size=4, shuffle=True, seed=7),
    }


class TestShared(BackendTests):
    """The same on ranks: whole batches only."""

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        size = getattr(options.get("world"), "size", 1)
        return wrap(batch_size=4 // size, **{"tail": "drop", **options})

    shared = True
    stride = 3


class TestDataset(BackendTests):
    """A dataset that draws in Python, read in this process."""

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(Bytes(), **options)

    others = {"length": lambda: wrap(Bytes(COUNT - 1))}
    stride = 2


def test_the_uniforms_are_those_of_the_test_vectors() -> None:
    keys = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    drawn = uniforms(keys, 3)
    assert drawn.dtype == np.float32
    assert (drawn * 2**24).astype(int).tolist() == VECTORS


VECTORS = [
    [235435, 2208453, 11305780],
    [14533101, 2297375, 9499544],
    [10216491, 16629007, 10487255],
    [4379392, 14547999, 6709151],
]


def test_uniforms_of_a_key_stand_alone() -> None:
    """The uniforms of a key do not depend on its neighbours."""
    keys = np.random.default_rng(0).integers(2**63, size=1000).astype(np.uint64)
    whole = uniforms(keys, 8)
    assert (uniforms(keys[17:18], 8) == whole[17]).all()
    assert (uniforms(keys, 3) == whole[:, :3]).all()
    assert 0 <= whole.min() < whole.max() < 1
    correlation = np.corrcoef(uniforms(np.arange(20000, dtype=np.uint64), 8).T)
    assert np.abs(correlation - np.eye(8)).max() < 0.04
    assert abs(uniforms(np.arange(20000, dtype=np.uint64), 8).mean() - 0.5) < 0.01


def test_the_files_and_labels_are_those_of_dalis_own_reader() -> None:
    @pipeline_def(batch_size=4, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]  # as DALI has it
    def reader() -> Any:
        raw, label = fn.readers.file(file_root=str(images()), name="Reader", pad_last_batch=True)
        return plain(raw, label)

    native = DALIGenericIterator(
        reader(), ["data", "label"], reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL
    )
    ours = wrap(graph=plain, shuffle=False)
    got = [(theirs[0], batch) for theirs, batch in zip(native, ours, strict=True)]
    assert len(got) == -(-COUNT // 4)
    for theirs, batch in got:
        assert torch.equal(theirs["data"], batch["data"])
        assert torch.equal(theirs["label"], batch["label"])


def test_all_ways_to_say_the_files_give_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path / "digits")
    files = sorted(folder.rglob("*.jpg"), key=str)
    labels = [int(file.parent.name) for file in files]
    (tmp_path / "list.txt").write_text("".join(f"digits/{f.parent.name}/{f.name} {f.parent.name}\n" for f in files))
    pairs = [(str(file), label) for file, label in zip(files, labels, strict=True)]
    relative = [(file.relative_to(folder), label) for file, label in zip(files, labels, strict=True)]
    ways = [
        wrap(folder),
        wrap(str(tmp_path / "list.txt")),
        wrap(pairs),
        wrap(tuple(relative), file_root=folder),
        wrap(pairs, py_num_workers=0, num_threads=1),
    ]
    runs = [[pixels(batch) for batch in loader] for loader in ways]
    assert all(run == runs[0] for run in runs)
    for loader in ways:
        loader.load_state_dict(ways[0].state_dict())


def test_without_labels_the_sample_index_stands_for_them() -> None:
    files = sorted(images().rglob("*.jpg"), key=str)
    (batch,) = wrap(files, batch_size=COUNT, graph=plain)
    assert sorted(batch["label"].flatten().tolist()) == list(range(COUNT))
    assert batch["label"].dtype == torch.int32
    (batch,) = wrap([data for data, _ in encoded()], batch_size=COUNT, graph=plain, shuffle=False)
    assert batch["label"].flatten().tolist() == list(range(COUNT))


def test_moved_folder_and_changed_folder(tmp_path: Path) -> None:
    """A moved folder is the same data, and a changed one is not."""
    state = wrap(write(tmp_path / "here")).state_dict()
    wrap(write(tmp_path / "elsewhere")).load_state_dict(state)
    changed = write(tmp_path / "changed")
    file = next(changed.rglob("*.jpg"))
    file.rename(file.with_name("zzz.jpg"))
    with pytest.raises(resumable.errors.StateMismatchError, match=r"backend.files(.|\n)*in the checkpoint"):
        wrap(changed).load_state_dict(state)


def test_a_batch_is_a_dict_of_tensors_that_nobody_overwrites() -> None:
    for dynamic in (True, False):
        for depth in (1, 2):
            loader = wrap(exec_dynamic=dynamic, prefetch_queue_depth=depth, batch_size=2)
            held = [(batch, pixels(batch)) for epoch in loader.epochs(3) for batch in epoch]
            del loader
            assert held[0][0]["data"].shape == (2, 20, 20, 3)
            assert list(held[0][0]) == ["data", "label"]
            assert all(pixels(batch) == seen for batch, seen in held)


def test_dalis_private_names_that_the_graph_uses_are_there() -> None:
    """A version without them fails here; `_check_api_type_scope` is replaced, as it makes a class at each call."""
    made = pipeline_def(lambda: fn.constant(idata=1), batch_size=1, num_threads=1, device_id=None)()
    made._build_graph()
    assert made._ops
    assert "self._check_api_type_scope(types.PipelineAPIType.SCHEDULED)" in inspect.getsource(type(made).schedule_run)
    with made._check_api_type_scope(PipelineAPIType.SCHEDULED) as nothing:
        assert nothing is None


def test_files_are_not_mapped_into_memory() -> None:
    made = make_pipeline(source(images(), pipeline=plain), [], 4, files=True)
    (read,) = [
        one for one in made._ops if "ile" in getattr(one._op, "schema_name", "") and "ead" in one._op.schema_name
    ]
    assert read._op._init_args["dont_use_mmap"] is True


def test_the_names_of_the_outputs_are_the_users() -> None:
    def one(raw: Any, label: Any) -> Any:
        return label

    (batch,) = wrap(graph=one, outputs="digit", batch_size=COUNT)
    assert list(batch) == ["digit"]


def test_conditions_in_the_graph() -> None:
    def graph(raw: Any, label: Any, u: Any) -> Any:
        image, _ = augment(raw, label, u)
        if u[0] < 0.5:
            image = fn.flip(image, vertical=1)
        return image, u

    run = [pixels(batch) for batch in wrap(graph=graph, uniforms=4, enable_conditionals=True)]
    loader = wrap(graph=graph, uniforms=4, enable_conditionals=True)
    loader.seek(epoch=0, step=3)
    assert [pixels(batch) for batch in loader] == run[3:]


@pytest.mark.parametrize("damage", ["truncated", "junk", "missing", "empty"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_bad_file_after_its_good_batches(tmp_path: Path, damage: str, depth: int) -> None:
    """A bad file is named, and the batches before it are delivered."""
    folder = write(tmp_path / "digits", 40)
    files = sorted(folder.rglob("*.jpg"), key=str)
    bad = files[22]
    good = bad.read_bytes()
    if damage == "missing":
        loader = wrap(folder, graph=plain, shuffle=False, prefetch_queue_depth=depth)
        bad.unlink()
    else:
        bad.write_bytes({"truncated": good[:200], "junk": b"no image", "empty": b""}[damage])
        loader = wrap(folder, graph=plain, shuffle=False, prefetch_queue_depth=depth)
    before: list[list[bytes]] = []
    with pytest.raises(SampleError, match=f"{bad.name}(.|\n)*epoch 0, step 5"):
        before.extend(map(pixels, loader))
    assert len(before) == loader.cursor.step == 5
    bad.write_bytes(good)
    rest = [pixels(batch) for batch in loader]
    clean = [pixels(batch) for batch in wrap(folder, graph=plain, shuffle=False)]
    assert [*before, *rest] == clean


def test_a_dataset_that_fails_is_named() -> None:
    class Torn(Bytes):
        def __getitem__(self, index: int) -> Any:
            if index == 9:
                raise OSError("torn file")
            return super().__getitem__(index)

    loader = wrap(Torn(), graph=plain, shuffle=False, prefetch_queue_depth=4)
    with pytest.raises(OSError, match=r"torn file\n.*raised by sample 9\.\n.*epoch 0, step 2"):
        for _ in loader:
            pass
    assert loader.cursor.position == 8, "the batches before it were delivered"


def test_search_leaves_the_trainers_randomness() -> None:
    """Looking for a bad sample leaves the trainer's randomness alone."""

    class Broken(Bytes):
        def __getitem__(self, index: int) -> Any:
            raw, label = super().__getitem__(index)
            return (b"no image" if index == 9 else raw), label

    loader = wrap(Broken(), graph=plain, shuffle=False)
    before = random.getstate()
    with pytest.raises(SampleError, match="sample 9"):
        list(loader)
    assert random.getstate() == before, "its labels are drawn"


def random_crop(raw: Any, label: Any) -> Any:
    return fn.resize(fn.decoders.image_random_crop(raw), size=(8, 8)), label


def noise(raw: Any, label: Any) -> Any:
    return fn.noise.gaussian(plain(raw, label)[0], stddev=2.0), label


def coin(raw: Any, label: Any) -> Any:
    return fn.flip(plain(raw, label)[0], horizontal=fn.random.coin_flip()), label


def shuffled(raw: Any, label: Any) -> Any:
    return plain(raw, label)[0], fn.permute_batch(label, indices=[0] * 4)


def second_reader(raw: Any, label: Any) -> Any:
    return plain(raw, label)[0], fn.readers.file(file_root=str(images()))[1]


def second_source(raw: Any, label: Any) -> Any:
    return plain(raw, label)[0], fn.external_source(source=lambda: np.zeros((4, 1), np.float32))


def own_source_only(raw: Any, label: Any) -> Any:
    return tuple(fn.external_source(source=lambda: ([np.zeros(1)] * 4,) * 2, num_outputs=2))


def python(raw: Any, label: Any) -> Any:
    return plain(raw, label)[0], fn.python_function(label, function=lambda array: array)


RANDOM = {
    "fn.decoders.image_random_crop": random_crop,
    "fn.noise.gaussian": noise,
    "fn.random.coin_flip": coin,
    "fn.permute_batch": shuffled,
    "fn.readers.file": second_reader,
    "fn.external_source": second_source,
    "fn.python_function": python,
}


def test_graph_with_a_source_of_its_own() -> None:
    """A graph that reads only its own external source is rejected."""
    with pytest.raises(resumable.errors.UnsupportedError, match=r"external_source \(.*test_dali_elastic.py:\d+\)"):
        wrap(graph=own_source_only)


@pytest.mark.parametrize("name", RANDOM)
def test_a_graph_that_would_not_be_elastic_is_refused_by_name(name: str) -> None:
    with pytest.raises(resumable.errors.UnsupportedError, match=rf"{name} \(.*test_dali_elastic.py:\d+\)"):
        wrap(graph=RANDOM[name])
    with pytest.warns(PromiseWarning, match=name):
        wrap(graph=RANDOM[name], on_nondeterministic="warn")


def test_every_operator_that_draws_is_known() -> None:
    """Dali's schemas say it; were that to change, this list would be shorter."""
    draws = {
        name
        for name in [*dali_backend.RegisteredCPUOps(), *dali_backend.RegisteredGPUOps()]
        if (schema := dali_backend.GetSchema(name)).IsStateful() or schema.HasRandomSeedArg()
    }
    assert {"random__Uniform", "random__Normal", "random__CoinFlip", "random__Choice", "random__Beta"} <= draws
    assert {"RandomResizedCrop", "RandomBBoxCrop", "ROIRandomCrop", "SSDRandomCrop", "RandomCropGenerator"} <= draws
    assert {"decoders__ImageRandomCrop", "noise__Gaussian", "noise__SaltAndPepper", "noise__Shot"} <= draws
    assert {"segmentation__RandomMaskPixel", "segmentation__RandomObjectBBox", "BatchPermutation"} <= draws
    assert not {"decoders__Image", "Resize", "Flip", "Crop", "CropMirrorNormalize", "Hsv", "io__file__Read"} & draws


def two(raw: Any, label: Any) -> Any:
    return raw, label


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("called as pipeline.raw, label, u.", {"pipeline": two, "uniforms": 2}),
        ("called as pipeline.raw, label., but", {"pipeline": augment}),
        ("Remove @pipeline_def", {"pipeline": pipeline_def(two)}),
        ("a plain function", {"pipeline": 3}),
        ("uniforms must be an integer of 0 or more, but it is -1", {"uniforms": -1}),
        ("num_threads must be an integer of 1 or more", {"num_threads": 0}),
        ("py_start_method must be one of spawn, forkserver, fork", {"py_start_method": "x"}),
        ("on_nondeterministic must be one of", {"on_nondeterministic": "ignore"}),
        ("outputs must contain a different name", {"outputs": ["a", "a"]}),
        ("does not accept seed=3", {"seed": 3}),
        ("does not accept batch_size=3", {"batch_size": 3}),
    ],
)
def test_options_that_cannot_work_are_refused(message: str, options: dict[str, Any]) -> None:
    with pytest.raises(resumable.errors.ConfigurationError, match=message):
        source(images(), **{"pipeline": two, **options})


def test_what_has_no_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bad.txt").write_text("a.jpg 1\nb.jpg\n")
    refused = [
        (tmp_path / "empty", "contains no files"),
        (tmp_path / "nowhere", "no such file or directory"),
        (tmp_path / "empty.txt", "contains no files"),
        (tmp_path / "bad.txt", "line 2 of .* is not a path and a label: 'b.jpg'"),
        ([], "the list contains no files"),
        ([("a.jpg", "cat")], "entry 0"),
        ([("a.jpg", 2**31)], "does not fit into int32"),
        (Bytes(0), "the dataset is empty"),
        (iter([b""]), "cannot read samples by index"),
    ]
    for data, message in refused:
        with pytest.raises(resumable.errors.ConfigurationError, match=message):
            source(data, pipeline=two)


def test_options_of_wrap_that_do_not_fit_are_refused() -> None:
    made = source(images(), pipeline=augment, uniforms=4)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("needs a batch size", {}),
        ("transform does not fit", {"batch_size": 4, "transform": len}),
        ("collate does not fit", {"batch_size": 4, "collate": len}),
        ("shard does not fit", {"batch_size": 4, "shard": True}),
        ('randomness="off" does not fit', {"batch_size": 4, "randomness": "off"}),
        ('randomness="batch" does not fit', {"batch_size": 4, "randomness": "batch"}),
        (r'randomness="passed" does not fit a DALI source\.', {"batch_size": 4, "randomness": "passed"}),
    ]
    for message, options in refused:
        with pytest.raises(resumable.errors.ConfigurationError, match=message):
            resumable.wrap(made, **options)


def test_without_dali_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    made = source(images(), pipeline=augment, uniforms=4)  # needs no DALI
    for name in ("by_index", "graph"):
        monkeypatch.delitem(sys.modules, f"resumable.backends.dali.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(resumable.errors.MissingDependencyError, match=r"needs nvidia.dali(.|\n)*pip install"):
        resumable.wrap(made, batch_size=4)


def test_nodes_and_names_have_to_be_as_many() -> None:
    with pytest.raises(resumable.errors.ConfigurationError, match="returns 2 nodes, but outputs has 1 names"):
        wrap(graph=two, outputs=["data"])


def test_samples_of_different_shapes_are_refused_by_output() -> None:
    def ragged(raw: Any, label: Any) -> Any:
        return label, fn.decoders.image(raw)

    with pytest.raises(
        resumable.errors.BackendError, match=r"output 'label' have different shapes, such as \(32, 32, 3\), \(40"
    ):
        next(iter(wrap(graph=ragged)))


def test_a_dataset_that_gives_no_bytes_is_refused() -> None:
    with pytest.raises(SampleError, match="is not an encoded sample: ndarray, float64 of shape"):
        next(iter(wrap(np.zeros((5, 3)), graph=plain)))


@pytest.mark.parametrize(("taken", "enough"), [(7, 8), (3, 4), (-4, 4)])
def test_missing_uniform_is_refused(taken: int, enough: int) -> None:
    """A uniform that does not exist is rejected at `wrap`."""

    def graph(raw: Any, label: Any, u: Any) -> Any:
        return u[taken] + u[2] + u[-3] + label[0], u[1:9]

    told = rf"uses u\[{taken}\], but with source\(..., uniforms=3\)(.|\n)*Use uniforms={enough}\."
    with pytest.raises(resumable.errors.ConfigurationError, match=told):
        wrap(graph=graph, uniforms=3)
    wrap(graph=graph, uniforms=enough)


def test_a_label_that_is_text_is_told_to_be_one() -> None:
    data = [(b"bytes", "cat")] * 4
    with pytest.raises(SampleError, match="the label of sample 0 is not a number: 'cat', a str"):
        next(iter(wrap(data, graph=lambda raw, label: (label, raw))))


def test_bad_file_read_ahead_by_dali(tmp_path: Path) -> None:
    """A bad file that DALI read ahead does not stop a run that continued elsewhere."""

    def decode(raw: Any, label: Any) -> Any:
        return fn.resize(fn.decoders.image(raw), size=(8, 8)), label

    files = sorted(dali_images.write(tmp_path).rglob("*.jpg"))
    make: Callable[[], resumable.Loader] = lambda: resumable.wrap(  # noqa: E731  # twice the same
        source(list(map(str, files)), pipeline=decode), batch_size=2
    )
    expected = make()
    expected.seek(epoch=0, step=5)
    whole = [batch["label"].flatten().tolist() for batch in expected]
    files[5].write_bytes(b"no image at all")
    loader = make()
    next(iter(loader))  # of step 0, while DALI works on steps 1 and 2
    loader.seek(epoch=0, step=5)
    assert [batch["label"].flatten().tolist() for batch in loader] == whole
