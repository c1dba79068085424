"""Check what a release would upload: `make release-check`.

It builds the wheel and the source distribution, checks their files, installs each into a new environment, runs the
program of the README and the command line there, and asks pip whether every extra can be installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TORCH = sys.argv[1:] or ["torch"]
COMMANDS = (["--version"], ["doctor"], ["check", "--help"], ["chaos", "run", "--help"])


def run(*words: object, cwd: Path) -> str:
    """Run a program; raise if it fails."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_names(archive: Path) -> None:
    """Check that an archive has the package, and nothing that only the repository and its services use."""
    if archive.suffix == ".whl":
        names = zipfile.ZipFile(archive).namelist()
        strange = [name for name in names if not re.match(r"resumable/|resumable_data-[^/]+\.dist-info/", name)]
    else:
        with tarfile.open(archive) as packed:
            names = [name.partition("/")[2] for name in packed.getnames()]
        strange = [name for name in names if name.startswith(".") and name != ".gitignore"]  # hatchling needs that one
    lacking = {"resumable/__init__.py", "resumable/py.typed"} - set(names)
    if strange or lacking:
        raise SystemExit(f"{archive.name} has {strange}, and lacks {sorted(lacking)}")


def check_links(wheel: Path) -> None:
    """Check that the text for PyPI has no link that leads nowhere there."""
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        prose = re.sub(r"```.*?```", "", opened.read(metadata).decode(), flags=re.DOTALL)
    links = ["".join(link) for link in re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)", prose)]
    relative = [link for link in links if not link.startswith("https://")]
    if relative or not links:
        raise SystemExit(f"{wheel.name} has these relative links: {relative}")


def installed(archive: Path, folder: Path) -> None:
    """Install an archive into a new environment, and run the README and the command line from it."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    pip = programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"
    run(*pip, *TORCH, cwd=folder)
    run(*pip, f"{archive}[torch]", cwd=folder)
    code = max(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL), key=len)
    (folder / "train.py").write_text(code, encoding="utf-8")
    assert "sum of the weights" in run(programs / "python", "train.py", cwd=folder)
    assert "resumed at" in run(programs / "python", "train.py", cwd=folder)
    for words in COMMANDS:
        run(programs / "resumable", *words, cwd=folder)
    print(f"{archive.name}: installed, ran the README and the command line", flush=True)  # noqa: T201  # its output
    if archive.suffix == ".whl":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        for extra in extras:
            run(*pip, "--dry-run", f"{archive}[{extra}]", cwd=folder)
            print(f"{archive.name}[{extra}]: can be installed", flush=True)  # noqa: T201  # its output


def main() -> None:
    """Build both archives, and check them."""
    for old in DIST.glob("*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "build", with_pip=True)
        python = Path(folder) / "build" / "bin" / "python"
        run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "build", "twine", cwd=ROOT)
        run(python, "-m", "build", "--outdir", DIST, cwd=ROOT)
        run(python, "-m", "twine", "check", "--strict", *DIST.iterdir(), cwd=ROOT)
        check_links(next(DIST.glob("*.whl")))
        for archive in sorted(DIST.iterdir(), reverse=True):
            check_names(archive)
            (own := Path(folder) / archive.name).mkdir()
            installed(archive, own)


if __name__ == "__main__":
    main()
