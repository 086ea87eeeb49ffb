"""The fixtures of the contract suites."""

from __future__ import annotations

from contract.fix_stores import alone, atomic_subject, databases, deaf, subject

__all__ = ["alone", "atomic_subject", "databases", "deaf", "subject"]
