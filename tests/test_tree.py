"""The README's tree is the tree on disk, and each folder says what it is for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "aoq"
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
UNLISTED = {"__init__.py", "__main__.py", "py.typed", "__pycache__", "static", "changes"}


def listed_in_readme():
    """Paths below src/aoq that the README's tree names."""
    tree = (ROOT / "README.md").read_text("utf-8").partition("src/aoq/\n")[2].partition("```")[0]
    paths, parent = set(), Path()
    for line in tree.splitlines():
        found = re.match(r"( +)([\w.]+/?) +\w", line)
        if not found:
            break
        name = Path(found[2].rstrip("/"))
        parent, path = (parent, parent / name) if len(found[1]) > 2 else (name, name)
        paths.add(path.as_posix())
    return paths


def test_the_tree_of_the_readme_is_the_tree_on_disk():
    on_disk = {
        item.relative_to(PACKAGE).as_posix()
        for item in [*PACKAGE.iterdir(), *(PACKAGE / "data").iterdir()]
        if item.name not in UNLISTED and (item.parent == PACKAGE or item.is_dir())
    }
    assert listed_in_readme() == on_disk


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_says_in_a_paragraph_what_it_is_for(folder):
    says = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
    assert says is not None
    assert len(says.split()) >= 15
