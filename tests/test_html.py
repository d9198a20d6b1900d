"""Pictures on pages: what the model sees of them, and nothing of what it would refuse."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from aoq.features.pictures import Canvas, decode
from aoq.html import small_picture, thumbnail

GREY = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)
CLEAR = Image.new("RGBA", (8, 8), (200, 0, 0, 40))
TURNED = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))


@pytest.mark.parametrize("picture", [GREY, CLEAR, TURNED], ids=["16 bits", "clear", "turned"])
def test_a_picture_looks_as_the_model_sees_it(tmp_path, picture):
    exif = Image.Exif()
    exif[0x0112] = 6 if picture is TURNED else 1
    picture.save(tmp_path / "picture.png", exif=exif)
    small = small_picture(tmp_path / "picture.png", side=8)
    np.testing.assert_array_equal(np.asarray(small), decode(tmp_path / "picture.png", Canvas(8)))


def test_no_side_is_longer(tmp_path):
    Image.new("RGB", (300, 200), "red").save(tmp_path / "large.png")
    assert small_picture(tmp_path / "large.png", side=30).size == (30, 20)


def test_what_is_refused_elsewhere_is_not_shown(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "other.ppm")
    Image.new("RGB", (90_000, 1)).save(tmp_path / "long.png")
    whole = tmp_path / "whole.jpg"
    TURNED.save(whole)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:400])
    shown = {file.name for file in tmp_path.iterdir() if thumbnail(file) is not None}
    assert shown == {"whole.jpg"}
    assert thumbnail(tmp_path / "missing.png") is None
    assert thumbnail(None) is None
