"""Pictures that are rare, and what opening one leaves behind in the process."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from aoq.features.pictures import Canvas, PictureError, decode, in_cells

RAMP = np.linspace(0, 1, 64).reshape(8, 8)


def tiff(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF")
    return file.getvalue()


@pytest.mark.parametrize(
    "values",
    [
        RAMP.astype(np.float32),
        (RAMP * 1e9).astype(np.float32),
        (RAMP * 6e38 - 3e38).astype(np.float32),
        (RAMP * 4e9 - 2e9).astype(np.int32),
        (RAMP * 60_000).astype(np.int32),
    ],
)
def test_greyscale_of_32_bits_goes_from_black_to_white(values: np.ndarray) -> None:
    pixels = decode(tiff(values), Canvas(8, resample=0))
    np.testing.assert_allclose(pixels[:, :, 0], RAMP * 255, atol=1.01)
    assert (pixels == pixels[:, :, :1]).all()


def test_greyscale_of_one_value_is_a_picture() -> None:
    assert len(np.unique(decode(tiff(np.full((8, 8), 3.5, np.float32)), Canvas(8)))) == 1


def test_greyscale_that_is_not_a_number_is_refused() -> None:
    values = np.where(RAMP > 0.5, np.nan, RAMP).astype(np.float32)
    with pytest.raises(PictureError, match="it holds NaN or infinite numbers"):
        decode(tiff(values), Canvas(8))


def test_the_filters_of_warnings_are_changed_once(tmp_path: Path) -> None:
    """Whoever changes them makes every warning that was shown once be shown again."""
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    decode(tmp_path / "a.png", Canvas(8))
    warnings.simplefilter("error")
    filters = list(warnings.filters)
    decode(tmp_path / "a.png", Canvas(8))
    assert list(warnings.filters) == filters


@given(width=st.integers(1, 5_000), height=st.integers(1, 5_000), most=st.integers(1, 1_024))
def test_a_picture_is_fitted_to_patches_as_siglip_2_fits_it(
    width: int, height: int, most: int
) -> None:
    module = pytest.importorskip("transformers.models.siglip2.image_processing_pil_siglip2")
    expected = module.get_image_size_for_max_num_patches(height, width, 16, most)
    assert in_cells(width, height, side=16, most=most) == expected[::-1]
