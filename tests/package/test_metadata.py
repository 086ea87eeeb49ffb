"""What the packages declare is what is tested: lower bounds and licences."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = sorted(ROOT.glob("packages/*/pyproject.toml"))
LOWEST = ROOT / "tests" / "package" / "lowest.txt"


def lower_bounds(requirements: list[str]) -> dict[str, str]:
    """The version after ``>=`` of each requirement that has one."""
    found = (re.match(r"([\w.-]+)>=([\w.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in found if match}


def release(version: str) -> tuple[int, ...]:
    """A version as numbers, so that 4.14 and 4.14.0 are one."""
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.parent.name)
def test_the_lowest_environment_holds_the_declared_lower_bounds(project: Path) -> None:
    declared = lower_bounds(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"])
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", LOWEST.read_text(encoding="utf-8"), re.MULTILINE))
    assert declared
    assert {name: release(pinned[name]) for name in declared} == {
        name: release(version) for name, version in declared.items()
    }


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.parent.name)
def test_every_package_carries_the_licence(project: Path) -> None:
    assert (project.parent / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
