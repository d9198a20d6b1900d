"""Pictures and region files to read."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image


def gradient(size: tuple[int, int] = (80, 60)) -> Image.Image:
    rows, columns = np.mgrid[: size[1], : size[0]]
    red, green = 255 * columns / size[0], 255 * rows / size[1]
    return Image.fromarray(np.stack([red, green, red], axis=-1).astype(np.uint8))


def content(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


WIDTH, SIZE = 16, (640, 480)


def arrays(seed: int, boxes: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes in pixels and features, as a detector gives them."""
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 1, (boxes, 2, 2)) * SIZE
    corners.sort(axis=1)
    features = random.uniform(0, 20, (boxes, WIDTH))
    return corners.reshape(boxes, 4).astype(np.float32), features.astype(np.float32)


def bottom_up_line(image_id: str, *, seed: int = 0, boxes: int = 3) -> bytes:
    fields = [image_id, *map(str, SIZE), str(boxes)]
    encoded = [base64.b64encode(array.tobytes()) for array in arrays(seed, boxes)]
    return b"\t".join([*(field.encode() for field in fields), *encoded]) + b"\n"


def encoded(*numbers: float) -> bytes:
    return base64.b64encode(np.array(numbers, np.float32).tobytes())


def photos(folder: Path, count: int) -> list[Path]:
    """Pictures of which none is like another."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    paths = [folder / f"{number}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(random.integers(0, 255, (64, 48, 3), np.uint8)).save(path)
    return paths


def damaged(folder: Path) -> list[Path]:
    """A file that is no picture, an empty one, and one cut in half."""
    (folder / "text.jpg").write_text("no picture")
    (folder / "empty.png").write_bytes(b"")
    whole = content(gradient((300, 300)), "JPEG")
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    return [folder / "text.jpg", folder / "empty.png", folder / "cut.jpg"]
