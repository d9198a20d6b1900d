"""The names of the library: all there, in one table, and the only ones that documents need."""

from __future__ import annotations

import ast
import pydoc
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import aoq

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def python_of(document: Path) -> list[ast.Module]:
    blocks = re.findall(r"```python\n(.*?)\n```", document.read_text("utf-8"), flags=re.DOTALL)
    return [ast.parse(block) for block in blocks]


TREES = {path.name: python_of(path) for path in DOCUMENTS} | {
    path.name: [ast.parse(path.read_text("utf-8"))] for path in EXAMPLES
}


@pytest.mark.parametrize("name", aoq.__all__)
def test_every_name_is_there_and_is_shown(name):
    assert getattr(aoq, name).__name__ == name
    assert name in dir(aoq)


def test_nothing_but_the_names_is_shown():
    assert {name for name in dir(aoq) if not name.startswith("_")} == set(aoq.__all__)


def test_the_names_for_type_checkers_are_those_that_are_imported():
    tree = ast.parse(Path(aoq.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == aoq._HOMES
    assert sorted(declared) == aoq.__all__


def test_help_shows_what_the_names_do():
    page = pydoc.render_doc(aoq, renderer=pydoc.plaintext)
    assert all(name in page for name in aoq.__all__)
    assert "Train round one, mine, train round two" in page


def test_the_import_alone_loads_nothing_heavy():
    code = "import sys, aoq; dir(aoq); print({'torch', 'numpy'} & sys.modules.keys())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


@pytest.mark.parametrize("name", [name for name, trees in TREES.items() if trees])
def test_what_documents_and_examples_use_exists(name):
    for node in (node for tree in TREES[name] for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "aoq" or node.attr in aoq.__all__, node.attr
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "aoq":
            for alias in node.names:
                assert hasattr(import_module(node.module), alias.name), alias.name


def test_there_is_something_to_look_at():
    assert len(EXAMPLES) >= 3
    assert TREES["own-model.md"]
    assert TREES["README.md"]


def test_the_reference_has_every_name_once():
    listed = re.findall(r"^::: aoq\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(aoq.__all__)


@pytest.mark.parametrize("name", aoq.__all__)
def test_every_name_explains_itself(name):
    assert pydoc.getdoc(getattr(aoq, name)).strip()
