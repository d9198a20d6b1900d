"""Commands that die by SIGKILL in the middle of something: nothing in the program can notice it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
_DIES = """
import os, signal, sys
import {module} as module
{at_start}
count = 0
def dies(*arguments, _real=module.{function}, **options):
    global count
    count += 1
    if count == {call}:
        {before}
        os.kill(os.getpid(), signal.SIGKILL)
    return _real(*arguments, **options)
module.{function} = dies
from aoq.cli import main
main()
"""


class KilledError(Exception):
    """Stands in for a kill where the program goes on: nothing in it catches this."""


def die(
    moment: tuple[str, str, int],
    *arguments: object,
    before: str = "pass",
    at_start: str = "pass",
) -> None:
    """Run `aoq` until the n-th call of a function, of which `before` is all that happens."""
    module, function, call = moment
    script = _DIES.format(
        module=module, function=function, call=call, before=before, at_start=at_start
    )
    command = [sys.executable, "-c", script, *map(str, arguments)]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def assert_same_state(one: Path, two: Path) -> None:
    """Compare the saved states of two rounds, bit for bit: weights, optimizer, progress."""
    states = [torch.load(path, weights_only=True) for path in (one, two)]
    kinds = [state.pop("optimizer_kind") for state in states]
    assert kinds[0] == kinds[1]
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)
