"""`aoq extract`: extract regions from pictures or from a bottom-up file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from aoq.cli.base import Count, Flag, app, command, next_steps
from aoq.errors import UserError

if TYPE_CHECKING:
    from aoq.features.regions import RegionSource
    from aoq.features.tables import RegionTable

Grid = Literal[1, 2, 3, 6]
QUICK_GRID: Grid = 3  # a good start: it trains faster, and is pooled from what was extracted
Vector = Literal["pooled", "cls", "mean"]
Workers = Annotated[int, Parameter(validator=Number(gte=0))]


@app.command
def extract(
    source: Path,
    /,
    *,
    out: Path | None = None,
    backbone: str | None = None,
    grid: Grid | None = None,
    regions: Count | None = None,
    workers: Workers = 0,
    force: Flag = False,
) -> None:
    """Turn pictures into regions: a grid of feature vectors each, cached by content.

    Extracted regions are never computed again, by any command; an interrupted extraction
    continues where it stopped. Pictures that cannot be used are left out and listed.

    Parameters
    ----------
    source
        A folder of pictures, including its subfolders; or a bottom-up TSV file.
    out
        Folder to write features, boxes and ids to, for other programs, other machines and
        `aoq data build --features`.
    backbone
        The network that extracts features: `efficientnet-lite0` by default, or a vision model of
        Hugging Face's transformers by its hub name or folder.
    grid
        Regions per side: 6, the default, gives 36 per image; a smaller grid holds means of those.
    regions
        Keep the first N regions of each image of a bottom-up file, if the images' numbers differ.
    workers
        Processes that decode pictures, besides those that compute.
    force
        Replace `out` if it exists.
    """
    from aoq.features.names import PICTURE_SUFFIXES

    if source.is_file():
        if source.suffix.lower() in PICTURE_SUFFIXES:
            raise UserError(f"{source} is a picture; name its folder, {source.parent}.")
        if out is None or grid or backbone or workers:
            raise UserError(
                f"{source} holds regions already; add --out FOLDER and leave out --grid, "
                "--backbone and --workers."
            )
        _check_output(out, source, force=force)
        _write(open_regions(source, regions=regions), out, source, force=force)
        _suggest_build("captions.json", "--features", out)
        return
    if regions is not None:
        raise UserError(f"--regions is for bottom-up files; {source} is not one; use --grid.")
    _extract_folder(source, region_source(backbone, grid), out=out, workers=workers, force=force)
    network = ("--backbone", backbone) if backbone else ()
    alike = ("--features", out) if out else (*network, "--grid", grid or QUICK_GRID)
    _suggest_build("captions.csv", "--pictures", source, *alike)


def open_regions(path: Path, *, regions: int | None) -> RegionTable:
    """Open a bottom-up file, or a folder that this command wrote."""
    from aoq.features.bottom_up import BottomUpFile
    from aoq.features.tables import RegionFolder

    if path.is_file():
        return BottomUpFile.open(path, regions=regions)
    folder = RegionFolder.open(path)
    return folder.first_regions(regions) if regions is not None else folder


def region_source(
    backbone: str | None,
    grid: int | None,
    *,
    vector: Vector | None = None,
    bfloat16: bool = False,
) -> RegionSource:
    from aoq.features.backbones import DEFAULT_BACKBONE, GRID
    from aoq.features.outputs import Output
    from aoq.features.regions import RegionSource

    if (vector or bfloat16) and backbone is None:
        raise UserError(
            "--vector and --bfloat16 are for a network of transformers; add --backbone."
        )
    if vector and grid:
        raise UserError("--vector keeps one vector of each photo; leave --grid out.")
    output = Output(vector or "patches", precision="bfloat16" if bfloat16 else "float32")
    return RegionSource.of_backbone(backbone or DEFAULT_BACKBONE, grid=grid or GRID, output=output)


def _extract_folder(
    folder: Path, source: RegionSource, *, out: Path | None, workers: int, force: bool
) -> None:
    from aoq.features.extract import extract_pictures, report_left_out
    from aoq.features.pictures import find_pictures
    from aoq.features.tables import KeptRegions
    from aoq.progress import count_of, say

    if out is not None:
        _check_output(out, folder, force=force)
    found = find_pictures(folder)
    extraction = extract_pictures(found.pictures, source, workers=workers)
    report_left_out(extraction.skipped, found)
    pictures = list(extraction.stored)
    ids = [picture.relative_to(folder).as_posix() for picture in pictures]
    table = KeptRegions(ids, pictures, extraction.stored, source)
    n_regions, width = table.shape
    count, regions = count_of(len(pictures), "picture"), count_of(n_regions, "region")
    say(f"{count}: {regions} of {width:,} numbers each ({source.id})")
    if out is not None:
        _write(table, out, folder, force=force)


def _suggest_build(*arguments: object) -> None:
    next_steps(command("data", "build", *arguments, "--out", "data/mine"))


def _check_output(out: Path, source: Path, *, force: bool) -> None:
    """Reject an existing `out` before hours of work."""
    from aoq.features.tables import WHAT
    from aoq.folders import check_output_folder

    check_output_folder(out, what=WHAT, force=force, sources=[source])


def _write(table: RegionTable, out: Path, source: Path, *, force: bool) -> None:
    from aoq.features.tables import region_folder, write_folder
    from aoq.progress import count_of, say

    with region_folder(out, force=force, sources=[source]) as temporary:
        write_folder(table, temporary)
    n_regions, width = table.shape
    count, regions_each = count_of(len(table.ids), "image"), count_of(n_regions, "region")
    say(f"{out}: {count}, {regions_each} of {width:,} numbers each")
