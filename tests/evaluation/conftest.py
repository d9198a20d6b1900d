"""The package of the extended metrics: as installed, or put into a folder of the test run."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session")
def eccv_caption_folder(tmp_path_factory):
    """Where `eccv_caption` can be imported from; empty where it is installed anyway."""
    if find_spec("eccv_caption") is not None:
        return ""
    folder = tmp_path_factory.mktemp("eccv-caption")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--target", str(folder), "eccv-caption"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("eccv-caption is not installed, and installing it takes more than a minute")
    if done.returncode:
        pytest.skip(f"eccv-caption is not installed and cannot be: {done.stderr.strip()[-200:]}")
    return str(folder)


@pytest.fixture
def eccv_caption(eccv_caption_folder, monkeypatch):
    if eccv_caption_folder:
        monkeypatch.syspath_prepend(eccv_caption_folder)
    from aoq.evaluation.extended import open_package

    return open_package()
