"""`aoq data build` and `aoq data check`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from aoq.cli.base import Flag, Size, app, next_steps

data_app = App(name="data", help="Build and check data sets.")
app.command(data_app)


@data_app.command
def build(
    source: str,
    /,
    *,
    out: Path,
    pictures: Path | None = None,
    splits: Path | None = None,
    grid: Literal[1, 2, 3, 6] = 6,
    size: Size = "small",
    seed: int = 0,
    force: Flag = False,
) -> None:
    """Build a data set: captions and region features of pictures.

    Parameters
    ----------
    source
        A captions file (CSV or JSON lines of image, caption[, split]; Karpathy or COCO JSON; a
        Flickr token file), or `scenes` for the embedded data set.
    out
        Folder to write.
    pictures
        Folder of the pictures; default: the folder of the captions file.
    splits
        Folder with train.txt, dev.txt and test.txt, for Flickr token files.
    grid
        Regions a side: 6 gives 36 an image; fewer are means of those, and train faster.
    size
        Of scenes.
    seed
        Of scenes.
    force
        Replace `out` if it exists.
    """
    from aoq.data.build import build_dataset, build_scenes
    from aoq.data.formats import read_records

    if source == "scenes":
        build_scenes(out, size=size, seed=seed, grid=grid, force=force)
    else:
        file = Path(source)
        records = read_records(file, pictures=pictures or file.parent, splits=splits)
        build_dataset(records, out, name=out.name, grid=grid, force=force)
    check(out)
    next_steps(f"aoq run scenes-small --data {out} --out runs/{out.name}")


@data_app.command
def check(folder: Path, /) -> None:
    """Report everything that is wrong or odd in a data set, and its sizes.

    Parameters
    ----------
    folder
        A folder that `aoq data build` wrote, or a SCAN precomp folder.
    """
    from aoq.data.check import check_dataset
    from aoq.progress import say, warn

    report = check_dataset(folder)
    for warning in report.warnings:
        warn(warning)
    report.raise_for_errors()
    for what, count in report.facts.items():
        say(f"{what}: {count:,}")
    if not report.warnings:
        say("nothing odd found")
