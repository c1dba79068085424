"""Thousands of files, within the usual limit of open ones: in one source, and in as many sources as files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, os, resource, sys
import numpy as np
import pyarrow as pa, pyarrow.parquet as pq
from torch.utils.data import ConcatDataset, DataLoader
import resumable
from tar_files import write

folder, form, how, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
os.chdir(folder)
limit = count * 3 // 4
for number in range(count):
    if form == "tar":
        write(f"{number:04}.tar", [(f"{key}.cls", str(number * 2 + key).encode()) for key in range(2)])
    elif form == "parquet":
        pq.write_table(pa.table({"x": [number * 2, number * 2 + 1]}), f"{number:04}.parquet")
    else:
        np.arange(number * 10, number * 10 + 12, dtype=np.int32).tofile(f"{number:04}.bin")
        np.save(f"{number:04}.npy", [6, 6])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
names = [f"{number:04}" for number in range(count)]
make = {
    "tokens": lambda some: resumable.Tokens([f"{name}.bin" for name in some], 5, dtype="i4"),
    "packed": lambda some: resumable.Packed(
        [f"{name}.bin" for name in some], 5, documents=[f"{name}.npy" for name in some], how="fit", dtype="i4"
    ),
    "tar": lambda some: resumable.Tars([f"{name}.tar" for name in some]),
    "parquet": lambda some: resumable.Parquet([f"{name}.parquet" for name in some]),
}[form]
if how == "one":
    data = make(names)
else:
    apart = [make([name]) for name in names]
    data = resumable.mix(dict(zip(names, apart))) if how == "mix" else ConcatDataset(apart)
order = {} if how == "mix" else {"shuffle": True}
loader = resumable.wrap(DataLoader(data, batch_size=8, collate_fn=list, **order), seed=0)
told = lambda sample: str({key: str(value) for key, value in sample.items() if not key.startswith("__")}) if isinstance(
    sample, dict) else str(sample)
read = [told(sample) for epoch in loader.epochs(2) for batch in epoch for sample in batch]
expected = [told(data[number]) for number in range(len(data))]
both = sorted(read) == sorted(expected * 2)
print(json.dumps({"open": len(os.listdir("/proc/self/fd")), "right": form == "packed" or how == "mix" or both}))
"""


@pytest.mark.parametrize(
    ("form", "how"),
    [
        ("tokens", "one"),
        ("tokens", "concat"),
        pytest.param("packed", "mix", marks=pytest.mark.slow),
        pytest.param("tokens", "mix", marks=pytest.mark.slow),
        pytest.param("packed", "one", marks=pytest.mark.slow),
        pytest.param("tar", "concat", marks=pytest.mark.slow),
        pytest.param("parquet", "concat", marks=pytest.mark.slow),
    ],
)
def test_many_files_are_read_within_the_limit(form: str, how: str, tmp_path: Path) -> None:
    count = 620 if form in {"tokens", "packed"} else 320
    command = [sys.executable, "-c", RUN, str(tmp_path), form, how, str(count)]
    path = {"PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])}
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env=path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout)
    assert told["right"]
    assert told["open"] < 450
