"""Uploads are decoded in processes that can be ended: by time, by memory, and with the server."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aoq.features.pictures import Canvas, PictureError, decode
from aoq.web.decoders import Decoders
from aoq.web.limits import Limits
from tests.web.conftest import many_scans, picture_bytes

CANVAS = Canvas(224)
LIMITS = Limits()


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    """With the bounds of a server, but for time."""
    bounded = Decoders(max_pixels=LIMITS.pixels, memory=LIMITS.decode_bytes, seconds=0.5)
    with closing(bounded):
        yield bounded


def encoded(mode: str, kind: str, size: tuple[int, int] = (300, 200), **options) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), np.uint8)
    raw = "CMYK" if mode == "CMYK" else "RGBA"
    Image.frombytes(raw, size, noise.tobytes()).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


PICTURES = {
    "JPEG": encoded("RGB", "JPEG", (900, 700)),
    "turned JPEG": encoded("RGB", "JPEG", exif=turned()),
    "CMYK": encoded("CMYK", "JPEG"),
    "transparent PNG": encoded("RGBA", "PNG"),
    "turned PNG": encoded("RGBA", "PNG", exif=turned()),
    "palette": encoded("P", "GIF"),
    "WebP": encoded("RGBA", "WEBP"),
    "bilevel TIFF": encoded("1", "TIFF"),
}


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize("canvas", [CANVAS, Canvas(64, 2), Canvas(64, shortest=72), None], ids=str)
def test_pixels_are_the_same_as_without_a_process(decoders, picture, canvas):
    np.testing.assert_array_equal(decoders.decode(picture, canvas), decode(picture, canvas))


@pytest.mark.parametrize("picture", [b"", b"no picture", PICTURES["JPEG"][:5000]])
def test_what_is_wrong_is_said_in_the_same_words(decoders, picture):
    with pytest.raises(PictureError) as here:
        decode(picture, CANVAS)
    with pytest.raises(PictureError) as there:
        decoders.decode(picture, CANVAS)
    assert str(there.value) == str(here.value)


def test_a_picture_of_thousands_of_scans_is_given_up_and_the_next_one_decoded(decoders):
    hostile = many_scans(20_000)
    assert len(hostile) < 10_000_000
    started = time.monotonic()
    with pytest.raises(PictureError, match=r"takes too long to decode; .*another one"):
        decoders.decode(hostile, CANVAS)
    assert time.monotonic() - started < 10
    assert decoders.decode(picture_bytes(), CANVAS).shape == (224, 224, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound memory")
def test_a_picture_that_takes_too_much_memory_is_given_up():
    buffer = io.BytesIO()
    Image.new("RGBA", (8000, 4000)).save(buffer, "PNG", compress_level=1)
    for memory, is_enough in ((3 * 10**8, False), (LIMITS.decode_bytes, True)):
        with closing(Decoders(max_pixels=LIMITS.pixels, memory=memory, seconds=5)) as decoders:
            if is_enough:
                assert decoders.decode(buffer.getvalue(), CANVAS).shape == (224, 224, 3)
            else:
                with pytest.raises(PictureError, match="takes more memory than is available"):
                    decoders.decode(buffer.getvalue(), CANVAS)
                assert decoders.decode(picture_bytes(), CANVAS).shape == (224, 224, 3)


def test_a_process_that_died_while_it_was_idle_is_replaced_in_silence():
    with closing(Decoders(max_pixels=LIMITS.pixels, memory=LIMITS.decode_bytes, seconds=5)) as idle:
        idle.start()
        (child,) = idle._children
        child._process.kill()
        child._process.wait()
        assert idle.decode(picture_bytes(), CANVAS).shape == (224, 224, 3)
        assert child not in idle._children


def test_several_threads_have_a_process_each(decoders):
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: decoders.decode(PICTURES["JPEG"], CANVAS), range(12)):
            np.testing.assert_array_equal(found, decode(PICTURES["JPEG"], CANVAS))


def test_processes_import_neither_torch_nor_the_server():
    code = "import sys, aoq.web.decoders; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "fastapi", "transformers"} & set(names.stdout.split())


SERVER = """
import os, sys, threading, time
from aoq.features.pictures import Canvas
from aoq.web.decoders import Decoders
decoders = Decoders(max_pixels=10**8, memory=10**9, seconds=2.0)
busy, idle = open(sys.argv[1], "rb").read(), open(sys.argv[2], "rb").read()
for _ in range(2):
    decoders.start()
threading.Thread(target=decoders.decode, args=(busy, Canvas(224))).start()
decoders.decode(idle, Canvas(224))
print(*(child._process.pid for child in decoders._children), flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_end_with_a_server_that_is_killed(tmp_path):
    """The one that waits for a picture at once, the one that decodes when its time is up."""
    for name, content in (("busy", many_scans(20_000)), ("idle", picture_bytes())):
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-c", SERVER, str(tmp_path / "busy"), str(tmp_path / "idle")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, pids))
