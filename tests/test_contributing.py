"""What CONTRIBUTING.md points to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aoq.losses import LOSSES
from aoq.models import MODELS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PATHS = re.findall(r"`((?:src|tests|docs|benchmarks|results)/[\w/.-]*|[\w-]+\.(?:md|toml))`", TEXT)


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_every_file_that_is_named_exists(path):
    assert (ROOT / path).exists()


def test_every_target_of_make_that_is_named_exists():
    targets = re.findall(r"^make ([\w-]+)", TEXT, re.MULTILINE)
    rules = (ROOT / "Makefile").read_text("utf-8")
    assert targets
    assert all(re.search(rf"^{name}:", rules, re.MULTILINE) for name in targets)


def test_losses_and_models_are_where_a_newcomer_is_sent():
    losses = (ROOT / "src/aoq/losses.py").read_text("utf-8")
    assert "LOSSES: dict" in losses
    assert all(f'"{name}"' in (ROOT / "src/aoq/config/loss.py").read_text() for name in LOSSES)
    assert "MODELS: dict" in (ROOT / "src/aoq/models/__init__.py").read_text()
    assert all(f'"{name}"' in (ROOT / "src/aoq/config/model.py").read_text() for name in MODELS)
