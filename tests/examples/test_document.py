"""The document on own models shows the examples as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)\n```", DOCUMENT, flags=re.DOTALL)
OF_OTHER_PAGES = (  # docs/elsewhere.md
    "data_loader.py",
    "sentence_transformers_loss.py",
    "sentence_transformers_mining.py",
    "transformers_trainer.py",
)
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if path.name not in OF_OTHER_PAGES
)


def indented(block: str, spaces: int) -> str:
    lines = block.splitlines()
    return "".join(f"{' ' * spaces}{line}\n" if line else "\n" for line in lines)


def test_every_example_is_in_the_document():
    assert [path.name for path in EXAMPLES] == ["clip.py", "own_loop.py", "own_model.py"]
    assert all(f"examples/{path.name}" in DOCUMENT for path in EXAMPLES)
    assert len(BLOCKS) == 10


@pytest.mark.parametrize("block", BLOCKS)
def test_every_piece_of_code_is_in_an_example(block):
    sources = [path.read_text(encoding="utf-8") for path in EXAMPLES]
    assert any(
        f"\n{indented(block, spaces)}" in source for source in sources for spaces in (0, 4, 8)
    )
