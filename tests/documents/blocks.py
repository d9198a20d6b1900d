"""The blocks of code of the README and the documents, and why some are not run by tests.

Every block is a program (`python`), settings (`toml`) or lines for a shell. What no test can run
is listed here, once, with its reason; nothing else is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = "aoq|python3?|torchrun|make|pip|curl|export"

# Beginnings of commands, or parts of them, and why they are not run.
NOT_RUN = {
    "make ": "installs, or runs for minutes; .ci/run uses the targets",
    "python3 -m venv": "installs; scripts/try_wheel.py does",
    "pip install": "installs; scripts/try_wheel.py does",
    "torchrun ": "several processes; tests/training and tests/mining start them",
    "curl ": "asks a server; tests/web does",
    "aoq serve ": "runs until it is stopped; tests/web and tests/end_to_end serve",
    "aoq demo": "ten minutes; tests/end_to_end/test_demo.py runs a small one",
    "python -m reproduction": "hours, on Flickr8k; tests/reproduction run its parts",
    "CAPTIONS": "Flickr8k; tests/end_to_end/test_own_data.py runs it on a part",
    "small-sets": "hours, on Flickr8k",
    "Flickr8k.token.txt": "Flickr8k; tests/end_to_end/test_own_data.py runs it on a part",
    ".pth.tar": "weights of others; tests/published writes and imports such files",
    "aoq import CHECKPOINT": "the form of the command",
    "aoq pull": "a hub; tests/runs has one",
    "aoq push": "a hub; tests/runs has one",
    "milvus://": "a server of Milvus; tests/retrieval/test_stores.py uses Milvus Lite",
    "lists.db": "a process of its own; tests/retrieval/test_stores.py opens such a file",
    "--extended": "the annotations of COCO; tests/evaluation has small ones",
    " ...": "a piece of a command",
}
# Blocks without commands: their first words, and what they are.
OTHER = {
    "src/aoq/": "the tree; tests/test_tree.py",
    "@inproceedings": "a citation",
    "folder = trips": "filters; tests/retrieval/test_filters.py",
    '{"query"': "an answer",
    '{"time"': "a line of a log",
    "runs/mine: round one": "a message",
    "[round_one]": "settings; tests/documents/test_programs.py",
}


@dataclass(frozen=True)
class Block:
    """A block of a page: where it begins, its language, its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a shell, each on one line and without its comment."""
        lines = re.sub(r"\\\n *", "", self.text).splitlines()
        parts = [part.strip() for line in lines for part in _without_comment(line).split("&&")]
        return [part for part in parts if re.match(rf"([A-Z_]+=\w* )?({PROGRAMS})\b", part)]


def _without_comment(line: str) -> str:
    return re.sub(r"\s+#\s.*$", "", line)


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(page, text[: found.start()].count("\n") + 1, found[1], found[2])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def reason_not_run(command: str) -> str | None:
    """Return why no test runs a command; none for one that is run."""
    return next((NOT_RUN[part] for part in NOT_RUN if part in f"{command} "), None)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SHELL = [block for block in BLOCKS if block.language in ("", "sh") and block.commands]
PYTHON = [block for block in BLOCKS if block.language == "python"]
