"""The compiled loop where there is nowhere to keep what was compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aoq

USES_IT = """
import numpy as np
import aoq.mining.kernels as kernels
assert kernels.__file__.startswith({place!r}), kernels.__file__
flags = np.zeros(8, bool)
floors = np.full(3, 2, np.float32)
kernels._flag(np.array([1, 2, 3], np.float32), np.float32(3), floors, flags)
assert flags.tolist() == [False, True, True] + 5 * [False]
print(type(kernels.put._cache).__name__)
"""


@pytest.fixture
def installation(tmp_path):
    """A copy of the library in which nothing compiled can be written: a file is in the way."""
    place = tmp_path / "installed"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(aoq.__file__).parent, place / "aoq", ignore=ignored)
    (place / "aoq" / "mining" / "__pycache__").write_text("no folder")
    return place


def kernels_in(place, **variables):
    """The kind of cache that the loop of an installation has, if it runs."""
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    environment |= {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", USES_IT.format(place=str(place))],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("own_folder", [False, True])
def test_without_a_folder_to_write_to_the_loop_is_compiled_and_not_kept(installation, own_folder):
    nowhere = str(installation / "aoq" / "py.typed" / "below a file")
    variables = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere}
    if own_folder:
        variables["NUMBA_CACHE_DIR"] = nowhere
    assert kernels_in(installation, **variables) == "NullCache"


def test_with_a_folder_to_write_to_the_loop_is_kept_there(installation, tmp_path):
    kept = tmp_path / "kept"
    kind = kernels_in(installation, NUMBA_CACHE_DIR=str(kept))
    assert kind == "FunctionCache"
    assert list(kept.rglob("kernels._flag*.nbc"))
