"""Python values to JSON text and back, exactly: the text is stored as an opaque string.

What JSON has stays JSON; anything else is a tagged object of one key, ``{"$bytes": "..."}``. A dict that
could be taken for a tag, or has keys other than text, is ``{"$dict": [key, value, ...]}``. Exact types
only: a value that would not come back as it is (any subclass included) is refused before a write.
"""

from mnemongo.codec._canonical import canonical
from mnemongo.codec._read import decode
from mnemongo.codec._rules import MAX_DEPTH
from mnemongo.codec._write import encode

__all__ = ["MAX_DEPTH", "canonical", "decode", "encode"]
