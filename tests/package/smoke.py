"""Use an installed mnemongo with its declared dependencies alone: no server, no test tools.

Run by ``build_and_install.py`` in an environment that holds the wheel and nothing of this checkout.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
from pathlib import Path

import mnemongo
from mnemongo import SessionKey, sessions
from mnemongo.testing import ModelStore


def check(holds: object, otherwise: str) -> None:
    """Like ``assert``, also under ``python -O``."""
    if not holds:
        raise SystemExit(f"smoke test: {otherwise}")


def main() -> None:
    """Check what the wheel holds, then run one operation."""
    check("site-packages" in Path(mnemongo.__file__).parts, f"imported from {mnemongo.__file__}")
    check(importlib.resources.files(mnemongo).joinpath("py.typed").is_file(), "py.typed is missing")
    check(list(mnemongo.__all__) == sorted(mnemongo.__all__), "__all__ is not sorted")
    for name in mnemongo.__all__:
        check(hasattr(mnemongo, name), f"{name} is in __all__ only")
    key = SessionKey("shop", "ann", "s1")
    head = ModelStore().run(sessions.create(key))
    check(head.key == key, f"created {head.key} instead of {key}")
    version = importlib.metadata.version("mnemongo")
    print(f"mnemongo {version}: {len(mnemongo.__all__)} public names, one operation run")


if __name__ == "__main__":
    main()
