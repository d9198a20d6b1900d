"""The package of the extended metrics."""

from __future__ import annotations

import pytest

from aoq.evaluation.extended import open_package


@pytest.fixture
def eccv_caption():
    pytest.importorskip("eccv_caption")
    return open_package()
