"""Build every package, check what was built, install the wheels in a clean environment, run the smoke test.

Usage: ``python tests/package/build_and_install.py FOLDER``; needs build and twine, overwrites the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(interpreter: str | Path, *arguments: str | Path) -> None:
    """Run a Python, showing the command; fail as it fails."""
    print("+ python", *arguments, flush=True)
    if code := subprocess.run([interpreter, *arguments], check=False).returncode:
        sys.exit(code)


def names(archive: Path) -> list[str]:
    """The files in a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as sdist:
        return sdist.getnames()


def check_contents(archive: Path) -> None:
    """The licence and the typing marker must be there, and nothing that only this repository needs."""
    found = names(archive)
    for wanted in ("LICENSE", "py.typed"):
        if not any(name.rpartition("/")[2] == wanted for name in found):
            raise SystemExit(f"{archive.name} lacks {wanted}")
    if unwanted := [name for name in found if "/tests/" in name or "__pycache__" in name]:
        raise SystemExit(f"{archive.name} holds {unwanted}")


def main(folder: Path) -> None:
    """Leave nothing of an earlier run, then build, check, install and use."""
    shutil.rmtree(folder, ignore_errors=True)
    dist, clean = folder / "dist", folder / "clean"
    for package in sorted(ROOT.glob("packages/*/pyproject.toml")):
        python(sys.executable, "-m", "build", "--outdir", dist, package.parent)
    archives = sorted(dist.iterdir())
    python(sys.executable, "-m", "twine", "check", "--strict", *archives)
    for archive in archives:
        check_contents(archive)
    venv.create(clean, with_pip=True)
    interpreter = clean / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wheels = [archive for archive in archives if archive.suffix == ".whl"]
    python(interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wheels)
    python(interpreter, "-I", "-W", "error", ROOT / "tests" / "package" / "smoke.py")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
