"""Random operations on the files of a folder, each printed with what came out, and in the end everything that is there.

    python file_operations.py FOLDER SEED COUNT

The same seed gives the same operations. What is printed names no path outside of the folder.
"""

from __future__ import annotations

import glob
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

FOLDER, SEED, COUNT = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
NAMES = ["a", "b", "c"]
draw = random.Random(SEED)
chosen: list[str] = []


def path() -> str:
    """Choose a path, one to three names deep."""
    chosen.append("/".join(draw.choices(NAMES, k=draw.choice([1, 1, 2, 2, 3]))))
    return str(FOLDER / chosen[-1])


def put(mode: str) -> Any:
    """Write by `open`, and tell what is in the file then."""
    name = path()
    with open(name, mode) as file:
        file.write(f"{draw.random():.3f}")
    return Path(name).read_text()


def at(name: str, act: Any) -> Any:
    """Act relative to an open directory."""
    directory = os.open(os.path.dirname(name), os.O_RDONLY)
    try:
        return act(os.path.basename(name), directory)
    finally:
        os.close(directory)


def inside(act: Any) -> Any:
    """Act in another working directory, by a relative path."""
    os.chdir(path())
    try:
        return act()
    finally:
        os.chdir(FOLDER)


def copy_tree(source: str, target: str) -> Any:
    """Copy a tree to where nothing is: what comes out else depends on the order in which the system lists names."""
    if os.path.lexists(target) or leads_into(source, target):
        return None
    return shutil.copytree(source, target, symlinks=True)


def move(source: str, target: str) -> Any:
    """Move a file or a tree; one that cannot be renamed is copied."""
    return None if leads_into(source, target) else shutil.move(source, target)


def leads_into(source: str, target: str) -> bool:
    """Return whether a target is in a tree, by a link perhaps: copied into itself, it would have no end."""
    trees = [os.path.realpath(source), os.path.realpath(os.path.dirname(source)) + "/" + os.path.basename(source)]
    places = [os.path.realpath(target), os.path.realpath(os.path.dirname(target))]
    return any(place.startswith(tree) for place in places for tree in trees)


def status(found: os.stat_result) -> Any:
    """Return what is the same on every machine."""
    is_file = found.st_mode & 0o100000
    return oct(found.st_mode), found.st_size * bool(is_file), bool(is_file) and found.st_mtime in {1e9, 5e8}


def described(directory: str) -> Any:
    """Describe what `scandir` gives."""
    with os.scandir(directory) as entries:
        return sorted((e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink()) for e in entries)


def descriptor_flags(name: str, flags: int) -> str:
    """Write by a descriptor."""
    file = os.open(name, flags, 0o640)
    try:
        os.write(file, b"xy")
    finally:
        os.close(file)
    return Path(name).read_text()


OPERATIONS: dict[str, Any] = {
    "w": lambda: put("w"),
    "a": lambda: put("a"),
    "x": lambda: put("x"),
    "r+": lambda: put("r+"),
    "fd trunc": lambda: descriptor_flags(path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    "fd excl": lambda: descriptor_flags(path(), os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "fd plain": lambda: descriptor_flags(path(), os.O_RDWR),
    "fd at": lambda: at(path(), lambda name, d: os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=d))),
    "read": lambda: Path(path()).read_bytes(),
    "mkdir": lambda: os.mkdir(path()),
    "mkdir at": lambda: at(path(), lambda name, d: os.mkdir(name, dir_fd=d)),
    "makedirs": lambda: os.makedirs(path(), exist_ok=draw.random() < 0.5),
    "rmdir": lambda: os.rmdir(path()),
    "remove": lambda: os.remove(path()),
    "unlink at": lambda: at(path(), lambda name, d: os.unlink(name, dir_fd=d)),
    "pathlib unlink": lambda: Path(path()).unlink(missing_ok=True),
    "rename": lambda: os.rename(path(), path()),
    "replace": lambda: os.replace(path(), path()),
    "pathlib replace": lambda: Path(path()).replace(path()).name,
    "move": lambda: move(path(), path()),
    "copy": lambda: shutil.copy2(path(), path()),
    "copytree": lambda: copy_tree(path(), path()),
    "rmtree": lambda: shutil.rmtree(path()),
    "link": lambda: os.link(path(), path()),
    "symlink": lambda: os.symlink(draw.choice([*NAMES, "../a", path()]), path()),
    "readlink": lambda: os.readlink(path()),
    "truncate": lambda: os.truncate(path(), 2),
    "chmod": lambda: os.chmod(path(), 0o700),
    "utime": lambda: os.utime(path(), (1e9, 1e9)),
    "stat": lambda: status(os.stat(path())),
    "lstat": lambda: oct(os.lstat(path()).st_mode),
    "access": lambda: os.access(path(), os.W_OK),
    "exists": lambda: [test(path()) for test in (os.path.exists, os.path.isdir, os.path.isfile, os.path.islink)],
    "realpath": lambda: os.path.realpath(path()),
    "listdir": lambda: sorted(os.listdir(path())),
    "listdir bytes": lambda: sorted(os.listdir(os.fsencode(path()))),
    "scandir": lambda: described(path()),
    "walk": lambda: sorted((root, sorted(dirs), sorted(files)) for root, dirs, files in os.walk(FOLDER)),
    "glob": lambda: sorted(glob.glob(f"{FOLDER}/*/[ab]")),
    "rglob": lambda: sorted(map(str, FOLDER.rglob("c"))),
    "touch": lambda: Path(path()).touch(),
    "chdir": lambda: inside(lambda: (Path("b").write_text("in"), sorted(os.listdir()))),
}


def show(value: Any) -> str:
    """Show a value without the folder's path."""
    return repr(value).replace(str(FOLDER), "FOLDER").replace(str(FOLDER.parent), "ABOVE")


def main() -> None:
    """Do it all."""
    os.umask(0o022)
    for number in range(COUNT):
        name = draw.choice(list(OPERATIONS))
        chosen.clear()
        try:
            came_out = show(OPERATIONS[name]())
        except OSError as error:
            where = () if name == "utime" else (error.filename, error.filename2)  # which names no file
            came_out = show((type(error).__name__, error.errno, *where))
        print(number, name, chosen, came_out)
    for root, dirs, files in os.walk(FOLDER):
        for each in sorted(files):
            place = os.path.join(root, each)
            is_link = os.path.islink(place)
            print(show(place), is_link or Path(place).read_bytes(), oct(os.lstat(place).st_mode))
        print(show(root), sorted(dirs))


if __name__ == "__main__":
    main()
