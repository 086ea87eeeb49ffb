"""What writing and reading have in common: the limits, the spellings, and the two ways to fail."""

from __future__ import annotations

import re
from decimal import Context, InvalidOperation
from typing import Final

MAX_DEPTH: Final = 200
"""How many levels of containers a value may have."""

JSON_INT_BITS: Final = 63
# The thread's own context would change the text (capitals) and the errors (traps).
DECIMALS: Final = Context(capitals=1, traps=[InvalidOperation])
ZONE_KEY: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}")


class RefusedError(Exception):
    """What cannot be kept, and (from the inside out) the steps to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


class DamagedError(Exception):
    """A stored text that `encode` does not write."""
