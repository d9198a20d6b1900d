"""Processes that decode uploaded pictures: a process can be killed, a thread cannot.

A file of a few hundred kilobytes can keep a decoder busy for minutes, or make it allocate all
memory. A child process therefore decodes it within bounds that the system enforces: seconds of
computing, after which it is killed, and bytes of memory. A child that died is replaced. Children
import Pillow and NumPy only, read from a pipe and end when the server closes it, however that
ended. They return the pixels that a network reads as plain bytes, which are never unpickled.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict

import numpy as np

from aoq.features.pictures import TOO_DEMANDING, Canvas, Fault, PictureError, Pixels, decode

# The canvas (side, resampling, shorter side, cells; 0 for none), max pixels, memory, seconds,
# length
_REQUEST = struct.Struct(">IIIIQQdQ")
_ANSWER = struct.Struct(">?II")  # whether pixels follow, length, width of the picture
_TIME_IS_UP = getattr(signal, "SIGPROF", 0)

TOO_SLOW = Fault("takes too long to decode", "save the picture anew, or send another one")


class Decoders:
    """A child for each thread that needs one; children are reused."""

    def __init__(self, *, max_pixels: int, memory: int, seconds: float) -> None:
        self._bounds = max_pixels, memory, seconds
        self._children: set[_Child] = set()
        self._idle: list[_Child] = []

    def start(self) -> None:
        """Start a first child before the first picture comes."""
        self._idle.append(self._start_child())

    def decode(self, picture: bytes, canvas: Canvas | None) -> Pixels:
        """Decode bit by bit as `aoq.features.pictures.decode` does, or raise a `PictureError`."""
        child = self._take()
        sizes = (0, 0, 0, 0)
        if canvas is not None:
            sizes = canvas.side, canvas.resample, canvas.shortest or 0, canvas.cells or 0
        request = _REQUEST.pack(*sizes, *self._bounds, len(picture))
        try:
            is_decoded, answer, width = child.ask(request, picture)
        except (OSError, EOFError):
            self._children.discard(child)
            raise PictureError(picture, child.fault()) from None
        self._idle.append(child)
        if not is_decoded:
            raise PictureError(picture, Fault(**json.loads(answer)))
        return np.frombuffer(answer, np.uint8).reshape(-1, width, 3)

    def close(self) -> None:
        """Kill all children."""
        while self._children:
            self._children.pop().end()

    def _take(self) -> _Child:
        """Return an idle child that is alive, or a new one."""
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                child = self._idle.pop()
                if child.is_alive:
                    return child
                self._children.discard(child)
                child.end()
        return self._start_child()

    def _start_child(self) -> _Child:
        child = _Child()
        self._children.add(child)
        return child


class _Child:
    """One process, used through pipes."""

    def __init__(self) -> None:
        # Our search path without the working directory; Ctrl-C goes to the server alone.
        paths = {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | paths,
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, *request: bytes) -> tuple[bool, bytes, int]:
        """Return whether there are pixels, these or the fault, and the width of the picture.

        Raises an `EOFError` if the child died.
        """
        assert self._process.stdin is not None
        self._process.stdin.writelines(request)
        self._process.stdin.flush()
        is_decoded, length, width = _ANSWER.unpack(self._read(_ANSWER.size))
        return is_decoded, self._read(length), width

    def fault(self) -> Fault:
        """Return why a picture killed the child."""
        code = self.end()
        if code > 0:
            raise RuntimeError(f"a process that decodes uploads ended with code {code}")
        return TOO_SLOW if code == -_TIME_IS_UP else TOO_DEMANDING

    def end(self) -> int:
        """Kill the process if it still runs, and return its exit code."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # unsent bytes cannot be flushed
                pipe and pipe.close()
        return self._process.wait()

    def _read(self, length: int) -> bytes:
        assert self._process.stdout is not None
        content = self._process.stdout.read(length)
        if len(content) < length:
            raise EOFError
        return content


def _decode_until_closed() -> None:
    """Serve requests in a child until the server closes the pipe."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while head := requests.read(_REQUEST.size):
        *sizes, max_pixels, memory, seconds, length = _REQUEST.unpack(head)
        side, resample, shortest, cells = sizes
        canvas = Canvas(side, resample, shortest or None, cells or None) if side else None
        picture = requests.read(length)
        _bound_memory(memory)
        _bound_time(seconds)
        try:
            pixels = decode(picture, canvas, max_pixels=max_pixels)
            answer, width = pixels.tobytes(), pixels.shape[1]
            is_decoded = True
        except PictureError as error:
            answer = json.dumps(asdict(error.fault)).encode()
            is_decoded, width = False, 0
        _bound_time(0)
        answers.writelines([_ANSWER.pack(is_decoded, len(answer), width), answer])
        answers.flush()


def _bound_memory(most: int) -> None:
    with suppress(ImportError, OSError, ValueError):  # not supported, or a lower limit is set
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _bound_time(seconds: float) -> None:
    """Let the system kill this process after some seconds of computing; 0 for never."""
    if _TIME_IS_UP:
        signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    _decode_until_closed()
