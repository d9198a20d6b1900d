"""What CONTRIBUTING.md points to exists, and its worked examples work as they are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aoq.losses import LOSSES
from aoq.models import MODELS
from tests.conftest import write_precomp

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


DIFFS = re.findall(r"^```diff\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def edits(block: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the lines of each file that a block changes."""
    parts = re.split(r"^--- (\S+)\n", block, flags=re.MULTILINE)[1:]
    yield from zip(parts[::2], parts[1::2], strict=True)


def apply(lines: str, file: Path) -> None:
    """Change a file as a contributor would by hand: the lines around say where."""
    text = file.read_text("utf-8") if file.exists() else ""
    for hunk in lines.split("@@\n"):
        old = "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[:1] in " -" and line)
        new = "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[:1] in " +" and line)
        assert bool(old) == file.exists(), f"{file} exists, or has to"
        assert not old or text.count(old) == 1, f"{file}: found {text.count(old)} times:\n{old}"
        text = text.replace(old, new) if old else new
    file.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of the sources and tests with all four examples applied."""
    root = tmp_path_factory.mktemp("contributed")
    hidden = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=hidden)
    shutil.copy(ROOT / "pyproject.toml", root)
    for block in DIFFS:
        for path, lines in edits(block):
            apply(lines, root / path)
    return root


def python(root: Path, *words: str) -> str:
    """Run Python on the copy."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_examples_work_and_pass_the_tests_that_they_bring(changed):
    tests = [path for block in DIFFS for path, _ in edits(block) if path.startswith("tests/")]
    assert len(tests) == 4
    assert "7 passed" in python(changed, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_a_recipe_trains_the_model_and_the_loss_of_the_examples(changed):
    write_precomp(changed / "precomp")
    small = ("--model.joint-width", "8", "--round-one.epochs", "1", "--rounds", "one")
    recipe = ("scenes-tiny+mean-triplet", "--model.name", "means", "--data", "precomp")
    python(changed, "-m", "aoq", "run", *recipe, *small, "--out", "run")
    (result,) = (changed / "run").glob("**/results.jsonl")
    assert "rsum" in result.read_text("utf-8")


def test_the_sources_of_the_examples_are_in_the_style_of_the_others(changed):
    paths = sorted({path for block in DIFFS for path, _ in edits(block) if path.endswith(".py")})
    python(changed, "-m", "ruff", "check", "--no-cache", *paths)
    python(changed, "-m", "ruff", "format", "--check", "--no-cache", *paths)
