"""The world of the documents, made once, and a copy of it for each test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers")
from tests.documents.world import write_world


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """The world, with a cache of its own: it has a model for all folders."""
    folder = tmp_path_factory.mktemp("documents")
    previous = os.environ["AOQ_CACHE"]
    os.environ["AOQ_CACHE"] = str(folder / "cache")
    write_world(folder / "world")
    yield folder
    os.environ["AOQ_CACHE"] = previous


@pytest.fixture
def world(template, tmp_path, monkeypatch) -> Path:
    """A copy of the world as the current folder."""
    monkeypatch.setenv("AOQ_CACHE", str(template / "cache"))
    shutil.copytree(template / "world", tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    return tmp_path / "world"
