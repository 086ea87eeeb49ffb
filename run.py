"""Run the demo or the tests of a fresh clone; needs only Python 3.11 or newer and a package index.

* ``python3 run.py demo [arguments of the demo]``
* ``python3 run.py test [arguments of tox] [-- arguments of pytest]``
* ``python3 run.py setup`` only installs.

Everything is installed into ``.venv`` of this checkout. A stamp in it says what it was made from: when that
has changed, or the set-up was interrupted, it is made anew; otherwise it is used as it is.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - older Pythons get this far
    sys.exit("mnemongo needs Python 3.11 or newer; this is Python " + sys.version.split()[0])

import hashlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "mnemongo-stamp"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
REQUIREMENTS = ["--editable", f"{ROOT / 'packages' / 'mnemongo'}[local]", "rich>=14", "tox>=4.30,<5"]
COMMANDS = {
    "demo": ["examples/crash_proof_chat/demo.py"],
    "test": ["-m", "tox", "run"],
    "setup": ["--version"],
}
NO_PIP = """\
This Python ({python}) has neither ensurepip nor pip, so no environment can be made with it.
Install its venv module and call this again. Debian, Ubuntu: apt-get install python3-venv"""


def say(text: str) -> None:
    """Print a line of progress at once, also into a pipe."""
    print(f"run.py: {text}", flush=True)


def fingerprint() -> str:
    """What the environment is made from: this interpreter, this script, the packages' requirements."""
    digest = hashlib.sha256(f"{sys.version} {sys.base_prefix} {ROOT}".encode())
    for path in [Path(__file__), *sorted(ROOT.glob("packages/*/pyproject.toml"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current(wanted: str) -> bool:
    """Whether the environment was finished from what is there now, and its Python still runs."""
    if not STAMP.is_file() or STAMP.read_text() != wanted or not PYTHON.exists():
        return False
    return subprocess.run([PYTHON, "-c", ""], check=False).returncode == 0


def installer() -> list[str]:
    """Make an environment without packages; return the pip command that installs into it."""
    if importlib.util.find_spec("ensurepip"):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        return [str(PYTHON), "-m", "pip"]
    if importlib.util.find_spec("pip"):  # Debian without python3-venv: the system's pip serves ours
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", VENV], check=True)
        return [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    sys.exit(NO_PIP.format(python=sys.executable))


def set_up() -> None:
    """Make ``.venv``, unless it is there and current."""
    wanted = fingerprint()
    if is_current(wanted):
        return
    if VENV.exists() and not STAMP.is_file():
        sys.exit(f"{VENV} was not made by run.py: move it away, or use it with the steps in CONTRIBUTING.md")
    for made in (VENV, ROOT / ".tox"):
        shutil.rmtree(made, ignore_errors=True)
    say(f"1/2 making .venv with Python {sys.version.split()[0]}")
    VENV.mkdir()
    STAMP.write_text("unfinished")
    pip = installer()
    say("2/2 installing mnemongo, the development server and tox into it (a minute the first time)")
    subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS], check=True)
    STAMP.write_text(wanted)


def main(arguments: list[str]) -> int:
    """Set up, then run the command in the environment."""
    if not arguments or arguments[0] not in COMMANDS:
        sys.exit(__doc__)
    os.chdir(ROOT)
    for name in ("PYTHONHOME", "PYTHONPATH", "__PYVENV_LAUNCHER__"):  # they would reach into the environment
        os.environ.pop(name, None)
    os.environ["PIP_USER"] = "0"
    set_up()
    command = [str(PYTHON), *COMMANDS[arguments[0]], *arguments[1:]]
    say(" ".join(arguments))
    if os.name == "posix":  # become it: signals and exit codes need no passing on
        os.execv(PYTHON, command)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"run.py: set-up failed (exit code {error.returncode}); call it again to start it anew")
    except KeyboardInterrupt:
        sys.exit(130)
