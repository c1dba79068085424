"""Configuration in the shape of Hydra's: groups of YAML files, overrides, a working folder per run."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ORIGINAL_CWD = Path.cwd()


def to_absolute_path(path: str) -> Path:
    """Return a path relative to the folder in which the program was launched."""
    return ORIGINAL_CWD / path


def compose(overrides: list[str]) -> dict[str, Any]:
    folder = Path(__file__).parents[1] / "conf"
    config: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    for group, name in config.pop("defaults").items():
        config[group] = yaml.safe_load((folder / group / f"{name}.yaml").read_text())
    for override in overrides:
        key, _, value = override.partition("=")
        config[key] = yaml.safe_load(value)
    return config


def enter() -> dict[str, Any]:
    """Compose the configuration, and go to a new folder under `outputs`, as Hydra does."""
    overrides = sys.argv[1:]
    config = compose(overrides)
    run = ORIGINAL_CWD / "outputs" / time.strftime("%Y-%m-%d") / time.strftime("%H-%M-%S")
    (run / ".hydra").mkdir(parents=True, exist_ok=True)
    (run / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    (run / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides))
    (run / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"cwd": str(ORIGINAL_CWD), "pid": os.getpid()}))
    os.chdir(run)
    logging.basicConfig(
        level=logging.INFO,
        format="[%(asctime)s][%(name)s][%(levelname)s] - %(message)s",
        handlers=[logging.FileHandler("train.log"), logging.StreamHandler()],
    )
    return config
