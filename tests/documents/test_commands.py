"""Every command of the README and the documents runs on tiny data, or has a reason not to."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from aoq.cli import app
from tests.commands import aoq
from tests.documents.blocks import BLOCKS, NOT_RUN, OTHER, ROOT, SHELL, Block, reason_not_run
from tests.documents.world import BEFORE, OTHERWISE

EPOCHS = ("--round-one.epochs", "1", "--round-two.epochs", "1")
TINY = (*EPOCHS, "--model.joint-width", "8", "--model.word-width", "8")
# What a command of a document needs to take seconds.
FEWER = {"run": TINY, "train": ()}
TRAINS = ("aoq run ", "aoq train ", "aoq experiment ", "python examples/", "aoq data build scenes")
RUN = [block for block in SHELL if any(not reason_not_run(line) for line in block.commands)]


def is_slow(block: Block) -> bool:
    """Whether a block trains, or has to be preceded by a training."""
    needs_run = any(part in block.text for part in BEFORE)
    return needs_run or any(
        line.startswith(TRAINS) and not reason_not_run(line) for line in block.commands
    )


def run(command: str) -> str:
    """Run one line as a reader would type it; return what it says."""
    words = [str(Path(word).expanduser()) if "~" in word else word for word in shlex.split(command)]
    if words[0] == "python":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words[1:])
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        return ""
    assert words[0] == "aoq", command
    done = aoq(*words[1:], *(FEWER.get(words[1], ()) if "--plan" not in words else ()))
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout + done.stderr


def clear_outputs(command: str) -> None:
    """Remove what a command is about to write; the world has one of each."""
    words = shlex.split(command)
    for flag, value in pairwise(words):
        if flag == "--out" and not (words[1] == "experiment" and "--list" not in words):
            remove(Path(value))
    if words[:2] == ["aoq", "index"] and not {"--add", "--proposals"} & set(words):
        for index in Path(words[2]).glob("**/index"):
            remove(index)
    if words[:2] == ["python", "examples/clip.py"]:
        remove(Path(words[5]))


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=block.place, marks=[pytest.mark.slow] if is_slow(block) else [])
        for block in RUN
    ],
)
def test_the_commands_of_a_document_run(block, world, monkeypatch):
    for name, meant in OTHERWISE.get(block.page.name, {}).items():
        remove(Path(name))
        Path(meant).rename(name)
    monkeypatch.setattr(sys, "path", [str(world), *sys.path])
    monkeypatch.setenv("HOME", str(world))
    before = [line for part in BEFORE for line in BEFORE[part] if part in block.text]
    commands = [line for line in block.commands if not reason_not_run(line)]
    for command in [*before, *commands]:
        clear_outputs(command)
        if command.startswith("export "):
            monkeypatch.setenv(*command.removeprefix("export ").split("="))
        else:
            run(command)


def test_every_block_is_code_or_says_what_it_is():
    rest = [block for block in BLOCKS if block.language in ("", "sh") and not block.commands]
    for block in rest:
        assert any(block.text.startswith(start) for start in OTHER), block.place
    for start in OTHER:
        assert any(block.text.startswith(start) for block in rest), start


@pytest.mark.parametrize("part", NOT_RUN)
def test_a_reason_not_to_run_a_command_is_still_needed(part):
    assert any(part in f"{line} " for block in SHELL for line in block.commands)


def test_a_command_that_is_not_run_has_no_unknown_flag_all_the_same():
    """`aoq` parses every line, also those that only several processes or a hub can run."""
    for line in sorted({line for block in SHELL for line in block.commands}):
        whole = re.sub(r"(--\S+) \.\.\.", r"\1 x", line).replace(" ...", " --out x")
        words = shlex.split(whole.partition(" -m ")[2] if "torchrun" in whole else whole)
        if words and words[0] == "aoq" and "RUN [" not in line:
            app.parse_args(words[1:], exit_on_error=False, print_error=False)
