"""Disks that are small or read-only, where the system lets tests mount them."""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest


@contextmanager
def mounted(folder, *options):
    """A disk in memory at `folder`; skips the test where mounting is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", ",".join(options) or "rw", "tmpfs", folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


@contextmanager
def read_only(folder):
    """A folder that cannot be written to, by nobody; skips where mounting is not permitted."""
    _mount("--bind", folder, folder)
    try:
        _mount("-o", "remount,bind,ro", folder)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


def resize(folder, size):
    _mount("-o", f"remount,size={size}", folder)


def _mount(*arguments):
    try:
        done = subprocess.run(
            ["mount", *map(str, arguments)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no command mount")
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


def aoq_limited(*arguments, largest=None, env=None):
    """The command in a process that can write no file of more than `largest` bytes."""

    def limit():
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    return subprocess.run(
        [sys.executable, "-m", "aoq", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
        env=env,
    )


def assert_no_space(done):
    """Exit code 2 and one sentence about the space, without a traceback."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "no space is left" in errors[0]
    assert "the same command continues" in errors[0]
