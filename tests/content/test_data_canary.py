"""Other data after a restart: refused where a state knows what the samples are like; never where a run is right."""

from __future__ import annotations

import copy
import gc
import io
import json
import random
import re
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    TensorDataset,
)

import resumable
from resumable import World
from resumable.errors import StateMismatchError, StateMismatchWarning
from resumable.testing import BackendTests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable import Loader

EPOCHS = 2
FILES = [f"/scratch/1/{kind}/{number}.jpg" for kind in ("cat", "dog") for number in range(6)]


@dataclass
class Entry:
    path: str
    label: int


class Images(Dataset[int]):
    """Has a list of its files, as a folder of images has."""

    def __init__(self, files: Sequence[str]) -> None:
        self.samples = [(file, "dog" in file) for file in files]
        self.weights = [1.0] * len(files)
        self.order = list(range(len(files)))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return FILES.index("/scratch/1/" + "/".join(self.samples[index][0].split("/")[-2:]))


class Around(Dataset[int]):
    """Has another dataset inside, and columns in a dict."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.columns = dataset, {"row": [None] * len(dataset)}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> int:
        return int(self.dataset[index])


class Held(Dataset[int]):
    """Has whatever it is given under one name, and gives indices."""

    def __init__(self, **kept: Any) -> None:
        vars(self).update(kept)
        self._length = len(next(iter(kept.values())))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


class Drawn(Sampler[int]):
    """An order of a user's own."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length


def listed(values: Any) -> Loader:
    return resumable.wrap(values, batch_size=3, shuffle=True)


def loaded(dataset: Any, **options: Any) -> Loader:
    return resumable.wrap(DataLoader(dataset, batch_size=3, **options))


def together(dataset: Any) -> Loader:
    return resumable.wrap(DataLoader(dataset, batch_size=3, shuffle=True), randomness="sample")


def pandas() -> Any:
    return import_module("pandas")


def numbers(files: Sequence[str]) -> list[int]:
    return [FILES.index(file) for file in files]


def vectors(files: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array([[np.sin(number), 3.0] for number in numbers(files)])


SOURCES: dict[str, Callable[[Sequence[str]], Loader]] = {
    "names": lambda files: listed(list(files)),
    "tuple": lambda files: listed(tuple(files)),
    "paths": lambda files: listed([Path(file) for file in files]),
    "pairs": lambda files: listed([(file, "dog" in file) for file in files]),
    "records": lambda files: listed([{"image": file, "label": 1.0} for file in files]),
    "dataclasses": lambda files: listed([Entry(file, 1) for file in files]),
    "integers": lambda files: listed(numbers(files)),
    "array": lambda files: listed(np.array(numbers(files))),
    "vectors": lambda files: listed(vectors(files)),
    "tensor": lambda files: listed(torch.tensor(vectors(files))),
    "half": lambda files: listed(torch.tensor(vectors(files), dtype=torch.bfloat16)),
    "views": lambda files: listed(torch.tensor(vectors(files)).T.contiguous().T),
    "objects": lambda files: listed(np.array(list(files), dtype=object)),
    "images": lambda files: loaded(Images(files), shuffle=True),
    "images, two workers": lambda files: loaded(Images(files), shuffle=True, num_workers=2),
    "images, own order": lambda files: loaded(Images(files), sampler=Drawn(12)),
    "images around": lambda files: loaded(Around(Images(files)), shuffle=True),
    "list": lambda files: loaded(list(files)),
    "tensors": lambda files: loaded(TensorDataset(torch.tensor(vectors(files)), torch.zeros(12))),
    "subset": lambda files: loaded(Subset(Images(files), range(1, 9))),
    "concatenated": lambda files: loaded(ConcatDataset([Images(files[:5]), Images(files[5:])])),
    "stacked": lambda files: together(StackDataset(Images(files))),
    "stacked by name": lambda files: together(StackDataset(one=Held(label=[0] * 12), image=Images(files))),
    "texts": lambda files: loaded(Held(texts=[f"sentence {number}" for number in numbers(files)])),
    "columns": lambda files: loaded(Held(length=list(files), columns={"x": np.array(numbers(files))})),
    "frame": lambda files: loaded(Held(frame=pandas().DataFrame({"file": list(files), "label": 1.0}))),
    "series": lambda files: loaded(Held(series=pandas().Series(list(files)))),
}


def encoded(batch: Any) -> Any:
    return [encoded(one) for one in batch] if isinstance(batch, (list, tuple)) else str(batch)


def states_of(loader: Loader, epochs: int = EPOCHS) -> list[dict[str, Any]]:
    return [loader.state_dict() for epoch in loader.epochs(epochs) for _ in epoch]


def run(loader: Loader, epochs: int = EPOCHS) -> list[Any]:
    return [encoded(batch) for epoch in loader.epochs(epochs) for batch in epoch]


def refused(loader: Loader, state: dict[str, Any], match: str = "sample") -> None:
    before = loader.state_dict()
    with pytest.raises(StateMismatchError, match=f"the dataset has changed since the checkpoint: (its )?{match}"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def accepted(loader: Loader, state: dict[str, Any]) -> None:
    loader.load_state_dict(state)
    assert loader.state_dict()["cursor"] == state["cursor"]


# ---------------------------------------------------------------------- other data


@pytest.mark.parametrize("name", SOURCES)
def test_reversed_list_is_refused(name: str) -> None:
    """A reversed list is rejected at every step of every source."""
    states, other = states_of(SOURCES[name](FILES), 1), SOURCES[name](FILES[::-1])
    for state in states:
        assert state["fingerprint"]
        refused(other, state)


@pytest.mark.parametrize("name", SOURCES)
def test_the_same_data_go_on_at_every_step_by_json_and_by_torch(name: str) -> None:
    workers = "workers" in name
    whole, states = run(SOURCES[name](FILES), 2), states_of(SOURCES[name](FILES))
    again = SOURCES[name](FILES)
    for done, state in enumerate(states, start=1):
        if workers and done not in {2, 5}:
            continue
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        copies = [torch.load(file, weights_only=True), json.loads(json.dumps(state))]
        for copied in copies[:1] if workers else copies:
            again.load_state_dict(copied)
            assert run(again) == whole[done:]


def test_rows_of_hugging_face_are_read_without_their_transform() -> None:
    datasets = import_module("datasets")

    def broken(_: Any) -> Any:
        raise AssertionError("the transform was called")

    def make(files: Sequence[str]) -> Loader:
        dataset = datasets.Dataset.from_dict({"file": list(files)})
        dataset.set_transform(broken)
        return resumable.wrap(DataLoader(dataset, batch_size=3), randomness="batch")

    state = make(FILES).state_dict()
    accepted(make(FILES), state)
    refused(make(FILES[::-1]), state)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 40, 1000])
def test_a_list_that_is_shuffled_or_shifted_is_refused(length: int) -> None:
    files = [f"/data/{number}.jpg" for number in range(length)]
    state = listed(files).state_dict()
    accepted(listed(list(files)), state)
    for seed in range(3):
        other = random.Random(seed).sample(files, length)
        (accepted if other == files else refused)(listed(other), state)
    refused(listed([*files[1:], "/data/other.jpg"]), state)


def test_samples_of_the_whole_list_are_compared() -> None:
    state = listed(list(range(1000))).state_dict()
    found = 0
    for at in range(0, 1000, 10):
        try:
            listed([number + (number >= at) for number in range(1000)]).load_state_dict(state)
        except StateMismatchError:
            found += 1
    assert found > 93, "all after a file that was added are others, so only what comes last can be missed"


def test_the_message_has_the_sample_what_it_is_and_the_ways_out() -> None:
    state = listed(FILES).state_dict()
    with pytest.raises(StateMismatchError) as caught:
        listed([FILES[1], FILES[0], *FILES[2:]]).load_state_dict(state)
    text = str(caught.value)
    assert "has changed since the checkpoint: sample 0 (elements) differs; 2 of 12 compared samples differ" in text
    assert "in the checkpoint: sample 0 with the digest" in text
    assert re.search(f"in this run:       sample 0 with the digest [0-9a-f]{{4}}: '{FILES[1]}'", text)
    assert all(way in text for way in ("read twice", "others never", 'checks="ranks"', "strict=False", "sort"))


def test_an_unseeded_split_is_refused() -> None:
    def split(seed: int) -> Loader:
        order = torch.randperm(12, generator=torch.Generator().manual_seed(seed)).tolist()
        return loaded(Subset(Held(opaque=object_of(12)), order[:9]))

    accepted(split(1), split(1).state_dict())
    refused(split(2), split(1).state_dict())


def object_of(length: int) -> Any:
    """Return an object with a length that nothing can be told of."""

    class Opaque:
        __slots__ = ()

        def __len__(self) -> int:
            return length

    return Opaque()


def test_files_of_the_same_names_and_another_size_are_refused(tmp_path: Path) -> None:
    def make(folder: str, size: int) -> Loader:
        (tmp_path / folder).mkdir(exist_ok=True)
        files = [tmp_path / folder / f"{number}.bin" for number in range(5)]
        for file in files:
            file.write_bytes(b"x" * size)
        return loaded(Held(files=[str(file) for file in files]))

    state = make("a", 100).state_dict()
    accepted(make("b", 100), state)
    refused(make("c", 200), state)
    accepted(make("d", 0), state)  # not there yet
    accepted(make("a", 100), make("d", 0).state_dict())


def test_it_warns_where_it_is_told_to_go_on() -> None:
    state, other = states_of(listed(FILES))[2], listed(FILES[::-1])
    with pytest.warns(
        StateMismatchWarning, match=r"has changed since the checkpoint: sample 0(.|\n)*because of strict=False"
    ):
        other.load_state_dict(state, strict=False)
    assert other.state_dict()["cursor"] == state["cursor"]


def test_it_is_turned_off() -> None:
    state = listed(FILES).state_dict()
    off = resumable.wrap(FILES[::-1], batch_size=3, shuffle=True, checks="ranks")
    accepted(off, state)
    assert off.state_dict()["fingerprint"] is None
    accepted(listed(FILES), off.state_dict())


def test_an_evaluation_looks_at_nothing() -> None:
    loader = resumable.wrap(Held(values=[1, 2, 3]), batch_size=2, evaluation=True)
    assert loader.progress.noted.as_dict() is None


@pytest.mark.parametrize("other", [None, 3, [], {}, {"of": 1}, {"of": "elements", "samples": "x"}, {"of": "elements"}])
def test_what_a_state_says_in_another_form_is_not_compared(other: Any) -> None:
    accepted(listed(FILES), listed(FILES[::-1]).state_dict() | {"fingerprint": other, "digest": None})


def test_state_of_more_ranks_or_other_batches() -> None:
    """A state of more ranks with different batches is rejected, and one with the same batches continues."""

    def make(files: Sequence[str], rank: int, size: int, batch_size: int) -> Loader:
        options: Any = {"world": World(rank, size), "on_change": "continue"}
        return resumable.wrap(list(files), batch_size=batch_size, shuffle=True, **options)

    states = [states_of(make(FILES, rank, 2, 2)) for rank in range(2)]
    assert states[0] == states[1]
    for state in states[0]:
        for rank, size, batch in ((0, 1, 4), (1, 4, 1), (0, 1, 3), (2, 3, 1)):
            accepted(make(FILES, rank, size, batch), state)
            refused(make(FILES[::-1], rank, size, batch), state)


@pytest.mark.parametrize("name", [name for name in SOURCES if "workers" not in name])
def test_a_state_stays_below_1_kb(name: str) -> None:
    for state in states_of(SOURCES[name](FILES)):
        assert state["source_state"] is not None or len(json.dumps(state)) < 1024


# ---------------------------------------------------------------------- runs that are right


def moved(files: Sequence[str]) -> list[str]:
    return [file.replace("/scratch/1/", "/local/job 17/copy/") for file in files]


@pytest.mark.parametrize("name", ["names", "paths", "pairs", "records", "images", "concatenated", "frame", "objects"])
def test_a_folder_may_be_moved(name: str) -> None:
    state = SOURCES[name](FILES).state_dict()
    accepted(SOURCES[name](moved(FILES)), state)
    refused(SOURCES[name](moved(FILES)[::-1]), state)


def test_each_of_several_folders_may_be_moved() -> None:
    def make(images: str, masks: str, more: str) -> Loader:
        first = [{"image": f"{images}/{number}.png", "mask": f"{masks}/{number}.png"} for number in range(5)]
        return loaded(ConcatDataset([Held(files=first), Images([f"{more}/cat/{number}.jpg" for number in range(5)])]))

    accepted(make("/x/1", "y/2", r"C:\data"), make("/scratch/9/x", "/z", "/more").state_dict())

    def twice(first: str, second: str) -> Loader:
        return loaded(ConcatDataset([Images([f"{at}/{number}.jpg" for number in range(5)]) for at in (first, second)]))

    accepted(twice("/data/a", "/scratch/1"), twice("/data/a", "/scratch/2").state_dict())


class Alive(Images):
    """Everything that it gives is another thing each time, and it may be read in workers only."""

    calls = 0

    def __init__(self, files: Sequence[str]) -> None:
        super().__init__(files)
        self.random, self.cache, self.began = random.Random(), [None] * len(files), [time.time()] * len(files)
        self.identifiers = [random.SystemRandom().random() for _ in files]

    @property
    def paths(self) -> list[str]:
        raise OSError("the disk is not mounted here")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __getitem__(self, index: int) -> Any:
        type(self).calls += 1
        if not 0 <= index < len(self.samples):
            raise IndexError(index)
        self.cache[index] = time.time()  # type: ignore[call-overload]
        return index, time.time(), self.random.random() < 0.5, type(self).calls


@pytest.mark.parametrize("workers", [0, 2])
def test_computed_attributes_are_not_compared(workers: int) -> None:
    """Computed attributes of a dataset are not compared, and their code is not called."""
    states = states_of(loaded(Alive(FILES), num_workers=workers))
    calls = Alive.calls
    for state in states:
        accepted(loaded(Alive(FILES), num_workers=workers), state)
        refused(loaded(Alive(FILES[::-1]), num_workers=workers), state)
    assert Alive.calls == calls


def test_curriculum_before_or_after_the_load() -> None:
    """A curriculum continues whether it is restored before or after the load."""
    dataset: Any = Held(samples=list(FILES))
    states: list[tuple[int, dict[str, Any]]] = []
    loader = loaded(dataset)
    for epoch in loader.epochs(3):
        dataset.samples = [f"/data/{int(epoch)}/{number}.jpg" for number in np.roll(range(12), int(epoch))]
        states += [(int(epoch), loader.state_dict()) for _ in epoch]
    for number, state in states:
        fresh: Any = Held(samples=list(FILES))
        accepted(loaded(fresh), state)  # it is told the epoch after the load
        again = loaded(fresh)
        fresh.samples = [f"/data/{number}/{one}.jpg" for one in np.roll(range(12), number)]
        accepted(again, state)  # between
        accepted(loaded(fresh), state)  # before


def test_labels_that_a_run_makes_itself_go_on() -> None:
    def make(labels: torch.Tensor) -> tuple[TensorDataset, Loader]:
        dataset = TensorDataset(torch.zeros(12), labels)
        return dataset, loaded(dataset)

    dataset, loader = make(torch.zeros(12, dtype=torch.int64))
    for epoch in loader.epochs(2):
        dataset.tensors[1][:] = torch.arange(12) + int(epoch)
        for _ in epoch:
            state = loader.state_dict()
    saved = dataset.tensors[1].clone()
    accepted(make(torch.zeros(12, dtype=torch.int64))[1], state)
    accepted(make(saved)[1], state)
    later, again = make(torch.full((12,), 7))
    later.tensors[1][:] = saved
    accepted(again, state)
    refused(make(torch.full((12,), 7))[1], state)


def test_changed_elements_in_two_processes() -> None:
    """Elements that a loop changes continue in this process and in another."""
    original = [{"file": file, "seen": 0} for file in FILES]
    used = copy.deepcopy(original)
    loader, states = listed(used), []
    for epoch in loader.epochs(3):
        for batch in epoch:
            for one in batch:
                one["seen"] += 1
            states.append(loader.state_dict())
    for state in states:
        loader.load_state_dict(state)
        accepted(listed(copy.deepcopy(original)), state)


def test_the_last_bits_of_numbers_may_differ() -> None:
    values = np.random.default_rng(1).normal(size=(50, 300))
    near = values * (1 + 1e-5 * np.random.default_rng(2).normal(size=values.shape))
    for kind in (np.float64, np.float32, np.float16):
        state = listed(values.astype(kind)).state_dict()
        accepted(listed(near.astype(kind)), state)
        refused(listed(values.astype(kind)[::-1]), state)
        refused(listed(values.astype(kind)[:, ::-1]), state)


def test_numbers_that_are_none_and_numbers_that_are_all_alike() -> None:
    values = np.array([[np.nan, 1.0], [np.inf, 2.0], [3.0, 0.0]])
    accepted(listed(values.copy()), listed(values).state_dict())
    accepted(listed(np.zeros((5, 2))), listed(np.zeros((5, 2))).state_dict())
    accepted(listed(np.empty((3, 0))), listed(np.empty((3, 0))).state_dict())


@pytest.mark.parametrize(
    "element", [object(), {1, 2}, lambda: 0, torch.eye(2).to_sparse(), np.array([object()]), float("nan"), 1j, b"x", ""]
)
def test_elements_of_any_kind_go_on(element: Any) -> None:
    state = listed([element, 1, 2]).state_dict()
    accepted(listed([element, 1, 2]), state)


def test_elements_that_cannot_be_looked_at_are_not_compared() -> None:
    class Torn(dict[str, int]):
        def __getitem__(self, key: str) -> int:
            raise OSError(key)

    endless: list[Any] = []
    endless.append(endless)
    for element in (Torn(a=1), endless):
        accepted(listed([element, 2]), listed([element, 2]).state_dict())


def test_a_list_that_comes_from_a_file_at_the_next_start_goes_on() -> None:
    made = [(Path(file), np.int64(number), 0.5, np.True_) for number, file in enumerate(FILES)]
    kept = json.loads(json.dumps([(str(path), int(label), weight, bool(flag)) for path, label, weight, flag in made]))
    accepted(loaded(Held(samples=kept)), loaded(Held(samples=made)).state_dict())
    accepted(loaded(Held(files=np.array(FILES))), loaded(Held(files=FILES)).state_dict())
    accepted(
        listed([{"path": file, "label": 1} for file in FILES]), listed([Entry(file, 1) for file in FILES]).state_dict()
    )
    accepted(loaded(Held(labels=np.arange(12) % 5)), loaded(Held(labels=[one % 5 for one in range(12)])).state_dict())


@pytest.mark.slow
def test_what_was_noted_does_not_keep_the_data() -> None:
    dataset: Any = Held(data=np.zeros((12, 2)) + np.arange(12)[:, None])
    loader, alive = loaded(dataset), weakref.ref(dataset.data)
    dataset.data = dataset.data + 1
    list(loader)
    gc.collect()
    assert alive() is None


def test_files_that_a_run_writes_again_go_on(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(5)]

    def write(epoch: int) -> None:
        for file in files:
            file.write_text("label " * (epoch + 1))

    write(0)
    loader = loaded(Held(files=files))
    for epoch in loader.epochs(3):
        write(int(epoch))
        for state in (loader.state_dict() for _ in epoch):
            accepted(loaded(Held(files=files)), state)


def test_held_datasets_of_other_lengths() -> None:
    """Other datasets of other lengths, held too, do not hide the samples."""

    def make(files: Sequence[str]) -> Loader:
        subset = Subset(Held(files=["x.y", "z.w"] * 10), range(7))
        others = [subset, TensorDataset(torch.arange(40)), ConcatDataset([Held(files=["a.b", "c.d"])])]
        rows = np.array(numbers(files))[:, None]
        held = Held(rows=rows, first=others[0], second=others[1], third=others[2], fourth={"x": list("abcde")})
        return loaded(held)

    accepted(make(FILES), make(FILES).state_dict())
    refused(make(FILES[::-1]), make(FILES).state_dict(), r"sample 0 \(rows\)")


def test_an_attribute_that_is_no_longer_there_is_not_compared() -> None:
    accepted(loaded(Held(paths=FILES)), loaded(Held(files=FILES)).state_dict())


def test_made_up_names_hide_no_files() -> None:
    """Names that are made up at each start do not hide the files."""

    def make(files: Sequence[str], salt: int) -> Loader:
        keys, draws = [f"{salt} {number}" for number in range(12)], [random.Random(salt).random() for _ in range(12)]
        return loaded(Held(keys=keys, draws=draws, files=files))

    state = make(FILES, 1).state_dict()
    accepted(make(FILES, 2), state)
    refused(make(FILES[::-1], 1), state)


def test_constant_and_counting_columns_hide_nothing() -> None:
    """Values that are equal for all samples, or only number them, do not hide the rest."""

    def make(**kept: Any) -> Loader:
        return loaded(Held(root=["data.zip"] * 12, order=np.arange(5, 17), ids=list(map(str, range(12))), **kept))

    for kept in ({"files": FILES}, {"labels": numbers(FILES[::5] + FILES[:9])}, {"rows": vectors(FILES)}):
        other = {name: values[::-1] for name, values in kept.items()}
        state = make(**kept).state_dict()
        accepted(make(**kept), state)
        refused(make(**other), state, rf"sample 0 \({next(iter(kept))}\)")


def test_a_sampler_of_torchs_goes_on() -> None:
    def make() -> Loader:
        return loaded(Images(FILES), sampler=RandomSampler(range(12)))

    whole, states = run(make()), states_of(make())
    for step, state in enumerate(states, start=1):
        again = make()
        again.load_state_dict(state)
        assert run(again) == whole[step:]


# ---------------------------------------------------------------------- what a source says itself


class Says(Held):
    """Has a fingerprint."""

    asked = 0

    def __init__(self, said: Any) -> None:
        super().__init__(opaque=object_of(12))
        self.said = said

    def fingerprint(self) -> Any:
        type(self).asked += 1
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def test_a_dataset_may_say_what_its_data_are() -> None:
    Says.asked = 0
    loader = loaded(Says("v1"))
    states = states_of(loader)
    assert Says.asked == 1
    for state in states:
        accepted(loaded(Says("v1")), state)
        refused(loaded(Says("v2")), state, r"fingerprint\(\)")


def test_choice_of_samples_is_compared() -> None:
    """The choice among a dataset's samples is compared if the dataset tells it."""
    state = loaded(Subset(Says("v1"), range(9))).state_dict()
    refused(loaded(Subset(Says("v1"), range(1, 10))), state)
    refused(loaded(Subset(Says("v2"), range(9))), state)
    both = loaded(ConcatDataset([Says("v1"), Says("v2")])).state_dict()
    refused(loaded(ConcatDataset([Says("v2"), Says("v1")])), both)
    accepted(loaded(ConcatDataset([Says("v1"), Says("v2")])), both)


@pytest.mark.parametrize("said", [None, 3, b"x", NotImplementedError("not here")])
def test_a_method_of_that_name_that_says_no_text_is_left_alone(said: Any) -> None:
    assert loaded(Says(said)).state_dict()["fingerprint"] is None


class Records:
    """An indexed backend of one's own."""

    kind = "records"
    identity: Any = {}

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.length = list(names), len(names)

    def stored(self, indices: Sequence[int]) -> dict[str, list[str]]:
        return {"names": [self.names[index] for index in indices]}

    def read(self, requests: Any) -> Iterator[Any]:
        for request in requests:
            yield [self.names[index] for index in request.indices]


def test_a_backend_of_ones_own_may_say_what_it_stores() -> None:
    def make(files: Sequence[str]) -> Loader:
        return resumable.wrap(Records(files), batch_size=3, shuffle=True)

    whole = run(make(FILES))
    for step, state in enumerate(states_of(make(FILES)), start=1):
        refused(make(FILES[::-1]), state)
        again = make(FILES)
        again.load_state_dict(state)
        assert run(again) == whole[step:]


@pytest.mark.parametrize("stored", [lambda _: {"x": [random.random()]}, lambda _: {"x": [1, 2, 3]}])  # no secret
def test_suite_finds_a_backend_with_wrong_storage(stored: Any) -> None:
    """The conformance suite finds a backend that stores different data each time, or too little."""

    class Checked(BackendTests):
        __test__ = False
        records = Records(FILES)

        @classmethod
        def make(cls, **options: Any) -> Loader:
            return resumable.wrap(cls.records, **{"batch_size": 3} | options)

    Checked().test_what_it_declares_is_true()
    Checked.records.stored = stored  # type: ignore[method-assign]  # a wrong one
    with pytest.raises(AssertionError, match=r"stored\(\) (has an entry|returns the same)"):
        Checked().test_what_it_declares_is_true()


# ---------------------------------------------------------------------- real processes

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import resumable

kill_at, backwards, files = int(sys.argv[1]), sys.argv[2] == "backwards", sorted(map(str, Path("files").iterdir()))
loader = resumable.wrap(files[::-1] if backwards else files, batch_size=5, shuffle=True, seed=1)
if Path("state.json").exists():
    loader.load_state_dict(json.loads(Path("state.json").read_text()))
for batch in loader.steps(8):
    with open("log", "a") as log:
        print(*batch, file=log)
    Path("new.json").write_text(json.dumps(loader.state_dict()))
    os.replace("new.json", "state.json")
    if loader.global_step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_killed_run_with_its_files(tmp_path: Path) -> None:
    """A killed run continues with its files and not with them backwards."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def start(folder: str, kill_at: int, way: str = "") -> subprocess.CompletedProcess[str]:
        if not (tmp_path / folder).exists():
            (tmp_path / folder / "files").mkdir(parents=True)
            for number in range(17):
                (tmp_path / folder / "files" / f"{number}.txt").write_text("x")
        command = [sys.executable, str(script), str(kill_at), way]
        return subprocess.run(command, cwd=tmp_path / folder, capture_output=True, text=True, check=False)

    assert start("whole", -1).returncode == 0
    assert start("killed", 3).returncode == -9
    other = start("killed", -1, "backwards")
    assert other.returncode == 1
    assert "StateMismatchError: the dataset has changed since the checkpoint: sample 0 (elements)" in other.stderr
    assert start("killed", -1).returncode == 0
    assert (tmp_path / "killed/log").read_text() == (tmp_path / "whole/log").read_text()
