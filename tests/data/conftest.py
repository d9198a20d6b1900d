"""Fixtures that tests of data sets share with those of features."""

from __future__ import annotations

from tests.features.conftest import mean_colour, own_cache, tiny_models

__all__ = ["mean_colour", "own_cache", "tiny_models"]
