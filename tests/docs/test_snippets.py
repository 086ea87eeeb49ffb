"""Every Python block of the documentation is executed, in order, against the test session's server.

A block may use the names of the blocks before it on the same page. A block that cannot be run is preceded by
a comment that says why: ``<!-- not run: needs a model -->``.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/*.md"),
    ]
)
BLOCK = re.compile(
    r"^(?P<skip><!-- not run: .+ -->\n+)?```python[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Line and code of the blocks of ``page`` that are to be run."""
    text = page.read_text(encoding="utf-8")
    found = (match for match in BLOCK.finditer(text) if not match["skip"])
    return [(text.count("\n", 0, match.start("code")), match["code"]) for match in found]


def execute(page: Path) -> None:
    """Run the blocks of ``page`` in one namespace; tracebacks show the page's own lines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for line, code in blocks(page):
            exec(compile("\n" * line + code, page, "exec"), names)
    finally:
        for opened in names.values():
            if callable(close := getattr(opened, "close", None)) and not inspect.isclass(opened):
                close()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_snippets(page: Path, mongodb_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGODB_URI", mongodb_uri)
    execute(page)
