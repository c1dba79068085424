"""Check what a release would upload: `make release-check`.

It builds the wheel and the source distribution, inspects the wheel, installs each into a new environment, runs the
program of the README and the command line there, and asks pip whether every extra can be installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
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


def inspected(wheel: Path) -> None:
    """Check that a wheel has the package and nothing else, and that its text has no link that PyPI cannot follow."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = opened.read(metadata).decode()
    source = {path.relative_to(ROOT).as_posix() for path in (ROOT / "resumable").rglob("*") if path.suffix != ".pyc"}
    files = {name for name in source if (ROOT / name).is_file()}
    assert {name for name in names if ".dist-info/" not in name} == files, "files of the wheel differ from the package"
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)", prose)
    relative = ["".join(link) for link in links if not "".join(link).startswith("https://")]
    assert len(links) >= 20
    assert relative == [], "PyPI shows these links, which lead nowhere"
    print(f"{wheel.name}: {len(files)} files, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)  # noqa: T201  # its output


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
        inspected(next(DIST.glob("*.whl")))
        for archive in sorted(DIST.iterdir(), reverse=True):
            (own := Path(folder) / archive.name).mkdir()
            installed(archive, own)


if __name__ == "__main__":
    main()
