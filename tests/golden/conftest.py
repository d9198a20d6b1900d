"""Arrays computed by the published programs; another set can be put in their place.

The folder is that of the environment variable AOQ_GOLDEN, by default ../shared/golden beside the
repository. Every size comes from the arrays.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "golden"
FOLDER = Path(os.environ.get("AOQ_GOLDEN", DEFAULT))


class Golden:
    """One file of arrays, read as tensors."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.arrays: dict[str, np.ndarray[Any, Any]] = dict(file)

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.arrays[name]))

    def numpy(self, name: str) -> np.ndarray[Any, Any]:
        return self.arrays[name]

    def below(self, prefix: str) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix(prefix): self[name] for name in self.arrays if name.startswith(prefix)
        }


@pytest.fixture
def golden() -> Callable[[str], Golden]:
    def load(name: str) -> Golden:
        path = FOLDER / f"{name}.npz"
        if not path.is_file() and "AOQ_GOLDEN" not in os.environ:
            pytest.skip(f"{path} is absent; point AOQ_GOLDEN at the golden arrays")
        return Golden(path)

    return load


def close(actual: torch.Tensor, expected: torch.Tensor, *, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), atol=atol, rtol=1e-5)
