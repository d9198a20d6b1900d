"""Build what is released, twice, and try it in empty environments: the base, and each extra alone.

    python scripts/try_wheel.py                      # everything, with this Python
    python scripts/try_wheel.py search towers        # the base and these extras

Both builds have to be the same bytes. In the base environment a command that needs an extra has to
say in one sentence which; with the extra it has to work. An environment of an extra sees the
packages of the base and adds its own, so torch is installed once. Versions are those of
constraints.txt. The packages come from wherever pip is configured to find them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PREPARE = """
import json
from pathlib import Path

import numpy as np

random = np.random.default_rng(0)
Path("precomp").mkdir()
for split, images in (("train", 12), ("dev", 6), ("test", 6)):
    np.save(f"precomp/{split}_ims.npy", random.normal(size=(images, 4, 6)).astype("f"))
    lines = [f"a {random.choice(['red', 'blue'])} ball {n}" for n in range(5 * images)]
    Path(f"precomp/{split}_caps.txt").write_text("\\n".join(lines))
"""
TINY = "--model.joint-width 8 --model.word-width 8 --round-one.epochs 1 --round-two.epochs 1"
# What works without extras. `{python}` is the interpreter of the environment.
BASE = (
    "{python} prepare.py",
    "aoq --version",
    "aoq doctor",
    f"aoq run scenes-tiny --data precomp {TINY} --out run",
    "aoq evaluate run",
    "aoq mine run/round-one --out lists.safetensors --force",
    "aoq index run",
    "aoq recipes",
)
# What each extra is for: a command that works with it alone and names it without.
EXTRAS = {
    "extract": "aoq data build scenes --size tiny --out scenes",
    "transformers": "{python} -c 'import PIL, huggingface_hub, transformers'",
    "towers": "{python} -c 'import peft, sentencepiece, transformers, google.protobuf'",
    "hub": "{python} -c 'import jinja2, peft, sentence_transformers'",
    "search": "aoq search run 'a red ball'",
    "milvus": "aoq index run --store vectors.db --out index",
    "web": "aoq mine inspect lists.safetensors --data precomp --html page.html",
    "board": "{python} -c 'from torch.utils.tensorboard import SummaryWriter'",
    "datasets": "{python} -c 'import aoq, datasets; aoq.hard_negative_rows'",
    "clip": "{python} -c 'import tokenizers, transformers'",
    "coco": "{python} -c 'import eccv_caption'",
    "docs": "{python} -c 'import mkdocs, mkdocstrings'",
}
UNTRIED = {"dev": ".ci/run installs it and runs everything in it"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("extras", nargs="*", help="extras to try; all of them by default")
    parser.add_argument("--keep", type=Path, help="folder for the wheel and the sdist")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.extras) - EXTRAS.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not an extra; there are {', '.join(EXTRAS)}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = build_twice(work)
        if chosen.keep:
            chosen.keep.mkdir(parents=True, exist_ok=True)
            for file in wheel.parent.iterdir():
                shutil.copy(file, chosen.keep)
        try_wheel(wheel, work, extras=chosen.extras or list(EXTRAS))


def build_twice(work: Path) -> Path:
    """Build wheel and sdist from two copies of the tree; return the wheel if both are equal."""
    tools = Environment.create(work / "tools")
    tools.install("hatchling>=1.27")
    built = []
    for number in (1, 2):
        copy, out = work / f"copy-{number}" / ("x" * number), work / f"dist-{number}"
        copy_tree(copy, time=1_600_000_000 + 86_400 * number)
        tools.run("{python} -m hatchling build -d " + shlex.quote(str(out)), folder=copy)
        built.append({file.name: sha256(file) for file in sorted(out.iterdir())})
    if built[0] != built[1]:
        raise SystemExit(f"two builds of one tree differ: {json.dumps(built, indent=2)}")
    for name, digest in built[0].items():
        print(f"{name}: {digest}, twice")
    (wheel,) = (work / "dist-1").glob("*.whl")
    return wheel


def copy_tree(folder: Path, *, time: int) -> None:
    """Copy what git tracks, with other times of change."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        target = folder / name
        if not (ROOT / name).is_file():
            continue  # removed, and not committed
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
        os.utime(target, (time, time))


def try_wheel(wheel: Path, work: Path, *, extras: Sequence[str]) -> None:
    """Install the wheel alone and with each extra, and run what each is for."""
    base = Environment.create(work / "base")
    base.install("torch")  # first: which build it is depends on where pip looks
    base.install(str(wheel))
    folder = work / "folder"
    folder.mkdir()
    (folder / "prepare.py").write_text(PREPARE)
    for command in BASE:
        base.run(command, folder=folder)
    print("base: works")
    for extra in extras:
        shutil.copytree(folder, work / f"without-{extra}")
        base.run(EXTRAS[extra], folder=work / f"without-{extra}", missing=extra)
        shutil.copytree(folder, work / f"with-{extra}")
        with_extra = Environment.create(work / f"env-{extra}", above=base)
        with_extra.install(f"{wheel}[{extra}]")
        with_extra.run(EXTRAS[extra], folder=work / f"with-{extra}")
        shutil.rmtree(work / f"env-{extra}")
        print(f"{extra}: works")


class Environment:
    """A virtual environment; one `above` another sees its packages too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    @classmethod
    def create(cls, folder: Path, *, above: Environment | None = None) -> Environment:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        made = cls(folder)
        if above is not None:
            (made.packages / "base.pth").write_text(f"{above.packages}\n")
        return made

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *requirements: str) -> None:
        """Install with the pip of this interpreter."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        ended = subprocess.run([*pip, *constraints, *requirements], check=False)
        if ended.returncode:
            raise SystemExit(f"{', '.join(requirements)} cannot be installed")

    def run(self, command: str, *, folder: Path, missing: str = "") -> None:
        """Run a command; where an extra is `missing`, it has to fail and to name it."""
        words = shlex.split(command)
        if words[0] == "aoq":
            words = ["{python}", "-m", *words]
        words = [str(self.python) if word == "{python}" else word for word in words]
        quiet = {"AOQ_CACHE": str(folder / "cache"), "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **quiet},
            capture_output=True,
            text=True,
            check=False,
        )
        said = ended.stderr.strip()
        if not missing:
            if ended.returncode:
                raise SystemExit(f"{command}\n{ended.stdout}{said}")
        elif command.startswith("aoq ") and not (
            ended.returncode == 2 and f'pip install "aoq[{missing}]"' in said.splitlines()[-1]
        ):
            raise SystemExit(f"without {missing}: {command} (exit {ended.returncode})\n{said}")


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def declared_extras() -> set[str]:
    """Return the extras of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return set(project["optional-dependencies"])


if __name__ == "__main__":
    main()
