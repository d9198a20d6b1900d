"""The command, as people call it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout

import pytest

from aoq.cli import main


def aoq(*arguments, cwd="."):
    """The command in this process: it starts at once."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        chdir(cwd),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        patch.setattr(sys, "argv", ["aoq", *map(str, arguments)])
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def assert_refused(done, *sentences):
    """One sentence, exit code 2."""
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error: ")
    for sentence in sentences:
        assert sentence in done.stderr


def aoq_process(*arguments, cwd=None, env=None):
    """The command in a process of its own; `env` adds to the environment."""
    return subprocess.run(
        [sys.executable, "-m", "aoq", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
