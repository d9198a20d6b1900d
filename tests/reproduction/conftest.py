"""Fixtures that tests of the paper's report share with those of experiments."""

from __future__ import annotations

from tests.experiments.conftest import made, matrix

__all__ = ["made", "matrix"]
