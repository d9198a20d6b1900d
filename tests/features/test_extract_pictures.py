"""Pictures of every kind become pixels; what is no picture is refused, whoever made it."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from aoq.errors import UserError
from aoq.features.pictures import (
    MAX_SIDE,
    Canvas,
    PictureError,
    decode,
    find_fault,
    find_pictures,
    load_picture,
    picture_size,
)
from tests.features.cases import content, gradient

CANVAS = Canvas(224)


def png_of(width: int, height: int) -> bytes:
    """A few bytes that claim to be a picture of any size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("L", "PNG"),
        ("P", "GIF"),
        ("P", "PNG"),
        ("CMYK", "JPEG"),
        ("CMYK", "TIFF"),
        ("L", "JPEG"),
        ("RGB", "WEBP"),
        ("RGB", "BMP"),
        ("LA", "PNG"),
        ("RGB", "TIFF"),
    ],
)
def test_greyscale_cmyk_and_palettes_are_converted(mode: str, kind: str) -> None:
    flat = Image.new("RGB", (40, 40), (120, 120, 120)).convert(mode)
    pixels = decode(content(flat, kind), CANVAS)
    assert pixels.shape == (224, 224, 3)
    assert abs(float(pixels.mean()) - 120) < 5


def test_black_and_white_is_black_and_white() -> None:
    half = Image.new("1", (40, 40))
    half.paste(1, (0, 0, 20, 40))
    pixels = decode(content(half, "PNG"), CANVAS)
    assert (pixels[100, 10] == 255).all()
    assert (pixels[100, 210] == 0).all()


def test_sixteen_bit_greyscale_keeps_its_brightness() -> None:
    deep = Image.fromarray(np.full((20, 20), 120 << 8, np.uint16))
    for kind in ("PNG", "TIFF"):
        assert (decode(content(deep, kind), CANVAS) == 120).all()


def test_transparency_becomes_white() -> None:
    clear = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    for kind in ("PNG", "WEBP"):
        assert (decode(content(clear, kind), CANVAS) == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_camera_orientation_is_followed(kind: str, orientation: int) -> None:
    """A picture that is stored turned or mirrored, and says so, equals the one that is not."""
    undone_by = [
        [],
        [Image.Transpose.FLIP_LEFT_RIGHT],
        [Image.Transpose.ROTATE_180],
        [Image.Transpose.FLIP_TOP_BOTTOM],
        [Image.Transpose.TRANSPOSE],
        [Image.Transpose.ROTATE_90],
        [Image.Transpose.TRANSVERSE],
        [Image.Transpose.ROTATE_270],
    ][orientation - 1]
    stored = gradient()
    for step in undone_by:
        stored = stored.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = content(stored, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))
    difference = np.abs(
        decode(turned, CANVAS).astype(int) - decode(content(gradient(), "PNG"), CANVAS)
    )
    assert difference.mean() < 3
    assert picture_size(turned) == (80, 60)


def test_a_loaded_picture_is_upright_rgb_in_its_own_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = tmp_path / "a.jpg"
    gradient((80, 60)).convert("L").save(file, exif=exif)
    picture = load_picture(file)
    assert (picture.mode, picture.size) == ("RGB", (60, 80))
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(PictureError, match=rf"{file} is damaged or truncated \(image file"):
        load_picture(file)


def test_damaged_exif_data_is_not_a_reason_to_refuse_a_picture() -> None:
    damaged = content(gradient(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    np.testing.assert_array_equal(
        decode(damaged, CANVAS), decode(content(gradient(), "JPEG"), CANVAS)
    )


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_is_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    moving = content(frames[0], kind, save_all=True, append_images=frames[1:])
    first = decode(moving, CANVAS)[0, 0].astype(int)
    assert np.abs(first - [255, 0, 0]).max() < 5


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (2, 3)])
def test_tiny_and_elongated_pictures_are_squashed(size: tuple[int, int]) -> None:
    assert (decode(content(Image.new("RGB", size, "red"), "PNG"), CANVAS) == [255, 0, 0]).all()


def test_the_ending_of_a_name_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "wrong.png").write_bytes(content(gradient(), "JPEG"))
    pixels = decode(tmp_path / "wrong.png", CANVAS)
    np.testing.assert_array_equal(pixels, decode(content(gradient(), "JPEG"), CANVAS))


def test_the_content_of_a_file_gives_the_same_pixels_as_the_file(tmp_path: Path) -> None:
    gradient((1500, 900)).save(tmp_path / "large.jpg")
    by_content = decode((tmp_path / "large.jpg").read_bytes(), CANVAS)
    np.testing.assert_array_equal(decode(tmp_path / "large.jpg", CANVAS), by_content)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_truncated_pictures_are_refused(kind: str) -> None:
    whole = content(gradient((300, 300)), kind)
    with pytest.raises(PictureError, match=r"picture is (damaged|not a picture)"):
        decode(whole[: len(whole) // 2], CANVAS)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"no picture",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%id) (w) file\n",
        b"/etc/passwd",
        b"\xff\xd8\xff",
        b"GIF89a",
    ],
)
def test_what_is_not_a_picture_is_refused_with_what_is_expected(bad: bytes) -> None:
    with pytest.raises(PictureError, match="The picture is not a picture that can"):
        decode(bad, CANVAS)


def test_formats_off_the_list_are_refused_though_pillow_reads_them() -> None:
    for kind in ("PPM", "TGA", "ICO", "PCX", "EPS"):
        with pytest.raises(PictureError, match="is not a picture that can be read"):
            decode(content(gradient(), kind), CANVAS)


@pytest.mark.parametrize("side", [10_001, 14_000, 60_000])
def test_a_decompression_bomb_is_refused_by_its_header(side: int) -> None:
    tracemalloc.start()
    with pytest.raises(PictureError, match="has more than 100,000,000 pixels"):
        decode(png_of(side, side), CANVAS)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_large_jpeg_is_not_a_bomb_though_it_could_be_decoded_small() -> None:
    large = content(Image.new("L", (10_100, 10_000)), "JPEG")
    with pytest.raises(PictureError, match="has more than 100,000,000 pixels"):
        decode(large, CANVAS)


def test_a_limit_of_pixels_can_be_lower() -> None:
    with pytest.raises(PictureError, match="has more than 4,000 pixels"):
        decode(content(gradient(), "PNG"), CANVAS, max_pixels=4_000)


def test_a_line_of_pixels_is_refused_where_resizing_it_would_fill_the_memory() -> None:
    with pytest.raises(PictureError, match="is more than 65,535 pixels long"):
        decode(png_of(MAX_SIDE + 1, 1), CANVAS)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"]),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=12),
    share=st.floats(0, 1),
)
def test_damaged_bytes_give_pixels_or_a_sentence(
    kind: str, changes: list[tuple[float, int]], share: float
) -> None:
    damaged = bytearray(content(gradient((40, 30)), kind))
    for place, value in changes:
        damaged[int(place * (len(damaged) - 1))] = value
    with suppress(PictureError):
        pixels = decode(bytes(damaged[: int(len(damaged) * (0.5 + share))]), CANVAS)
        assert pixels.shape == (224, 224, 3)


def test_files_that_cannot_be_read_are_faults(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    for name, detail in (("none.jpg", "No such file"), ("folder.jpg", "Is a directory")):
        fault = find_fault(tmp_path / name)
        assert fault is not None
        assert fault.sentence(tmp_path / name).startswith(
            f"{tmp_path / name} cannot be read ({detail}"
        )


def test_pictures_are_found_in_all_folders_in_natural_order(tmp_path: Path) -> None:
    for name in ("img10.jpg", "img2.JPG", "b/10/x.png", "b/9/x.png", "a.webp", ".hidden.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("clip.mp4", "one.heic", "two.HEIC", ".DS_Store"):
        (tmp_path / name).touch()
    found = find_pictures(tmp_path)
    names = [path.relative_to(tmp_path).as_posix() for path in found.pictures]
    assert names == ["a.webp", "b/9/x.png", "b/10/x.png", "img2.JPG", "img10.jpg"]
    assert found.others == {".heic": 2, ".mp4": 1}


def test_links_that_lead_in_circles_and_folders_named_like_pictures_do_no_harm(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "folder.jpg" / "inside.png").touch()
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "folder.jpg" / "up").symlink_to("..")
    names = [path.name for path in find_pictures(tmp_path).pictures]
    assert names == ["inside.png"]


def test_what_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none is not a folder"):
        find_pictures(tmp_path / "none")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="everything is open to root")
def test_a_folder_that_is_closed_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    assert find_pictures(tmp_path).pictures == ()
    assert "closed cannot be read (Permission denied)" in capsys.readouterr().err
