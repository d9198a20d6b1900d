"""`aoq data build` and `aoq data check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from cyclopts import App

from aoq.cli.base import Count, Flag, Json, Size, app, command, next_steps, print_json
from aoq.cli.extract import Grid, Vector, Workers, open_regions, region_source
from aoq.errors import PROBLEMS_SHOWN, ManyProblemsError, UserError

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
    grid: Grid | None = None,
    backbone: str | None = None,
    vector: Vector | None = None,
    bfloat16: Flag = False,
    features: Path | None = None,
    regions: Count | None = None,
    workers: Workers = 0,
    size: Size | None = None,
    seed: int | None = None,
    skip_bad: Flag = False,
    force: Flag = False,
) -> None:
    """Build a data set from captions and the region features of pictures.

    Parameters
    ----------
    source
        A captions file (CSV or JSON lines of image, caption[, split]; Karpathy or COCO JSON; a
        Flickr token file), or `scenes` for the embedded data set.
    out
        Folder to write.
    pictures
        Folder of the pictures; default: the folder of the captions file. With `features`, they
        need not exist.
    splits
        Folder with train.txt, dev.txt and test.txt, one picture name per line.
    grid
        Regions per side: 6, the default, gives 36 per image; a smaller grid holds means of those
        and trains faster.
    backbone
        The network that extracts features: `efficientnet-lite0` by default, or a vision model of
        Hugging Face's transformers by its hub name or folder.
    vector
        Keep one vector of each photo instead of regions, for models with a pretrained image tower:
        the backbone's own (pooled), that of its first token (cls) or the mean of all (mean).
    bfloat16
        Compute the backbone in bfloat16, which is faster where the processor multiplies it.
    features
        Existing regions, used instead of a backbone: a folder that `aoq extract` wrote,
        or a bottom-up TSV file.
    regions
        Keep the first N regions of each image of a bottom-up file, if the images' numbers differ.
    workers
        Processes that decode pictures, besides those that compute.
    size
        Size of scenes: `small` by default.
    seed
        Seed of scenes: 0 by default.
    skip_bad
        Leave out what cannot be used (damaged or missing pictures, empty captions, lines that
        cannot be read) instead of rejecting the source; `skipped.jsonl` in `out` says why.
    force
        Replace `out` if it exists.
    """
    from aoq.data.build import (
        build_dataset,
        build_from_regions,
        build_scenes,
        check_output_dataset,
    )
    from aoq.data.sources.records import read_records
    from aoq.data.splits import splits_of
    from aoq.features.pretrained import has_text_tower
    from aoq.recipes import scenes_recipe

    scenes, file = source == "scenes", Path(source)
    if scenes:
        flags = {"pictures": pictures, "splits": splits, "features": features}
        _leave_out("scenes are drawn", **flags, skip_bad=skip_bad or None)
    else:
        _leave_out("only scenes have a size and a seed", size=size, seed=seed)
    if features is not None:
        computed = {
            "grid": grid,
            "backbone": backbone,
            "vector": vector,
            "bfloat16": bfloat16 or None,
            "workers": workers or None,
        }
        _leave_out("--features uses existing regions", **computed)
    elif regions is not None:
        raise UserError("--regions needs --features; name a bottom-up file with it.")
    if file.is_dir() and not scenes:
        raise _no_captions(file)
    reads = [path for path in (file, pictures, splits, features) if path and not scenes]
    check_output_dataset(out, force=force, sources=reads)
    if scenes:
        chosen = region_source(backbone, grid, vector=vector, bfloat16=bfloat16)
        size, seed = size or "small", seed or 0
        build_scenes(out, size=size, seed=seed, source=chosen, workers=workers, force=force)
    else:
        skipped: list[str] | None = [] if skip_bad else None
        read = partial(
            read_records,
            file,
            pictures=pictures or file.parent,
            splits=splits,
            need_pictures=features is None,
        )
        with _hint_at_skipping(skip_bad, helps=lambda: bool(read(skipped=[]))):
            records = read(skipped=skipped)
            if features is None:
                chosen = region_source(backbone, grid, vector=vector, bfloat16=bfloat16)
                build_dataset(
                    records,
                    out,
                    name=out.name,
                    source=chosen,
                    workers=workers,
                    force=force,
                    skipped=skipped,
                )
        if features is not None:
            table = open_regions(features, regions=regions)
            build_from_regions(
                records, out, name=out.name, regions=table, force=force, skipped=skipped
            )
        _report_skipped(skipped or [], out)
    check(out)
    if {"train", "dev"} <= set(splits_of(out)):
        recipe = [scenes_recipe(size)] if scenes else []  # else one that `aoq run` chooses
        if vector is not None:
            recipe = ["towers", "--model.image", str(backbone)]
            if not has_text_tower(str(backbone)):
                recipe += ["--model.text", "NAME"]
        next_steps(command("run", *recipe, "--data", out, "--out", f"runs/{out.name}"))


@contextmanager
def _hint_at_skipping(skips: bool, *, helps: Callable[[], bool]) -> Iterator[None]:
    """Name the flag that leaves out unusable items, below the list of them, if it would help."""
    try:
        yield
    except ManyProblemsError as error:
        problems = [*error.problems]
        with suppress(UserError):
            if not skips and helps():
                problems.append("To build the data set without the unusable items, add --skip-bad.")
        raise UserError(*problems) from None


def _report_skipped(skipped: list[str], out: Path) -> None:
    """List what was left out; a long list is complete only in its file."""
    from aoq.data.build import SKIPPED
    from aoq.progress import count_of, say, warn

    if skipped:
        items = count_of(len(skipped), "unusable item")
        warn(f"{items} left out; all are in {out / SKIPPED}:")
        for problem in skipped[:PROBLEMS_SHOWN]:
            say(f"- {problem}")
        more = len(skipped) - PROBLEMS_SHOWN
        if more > 0:
            say(f"and {more:,} more.")


def _no_captions(folder: Path) -> UserError:
    example = folder / "captions.csv"
    return UserError(
        f"{folder} is a folder; expected a captions file. Write one, such as {example} with the "
        "lines `image,caption` and `dog.jpg,a dog runs in the snow`, and name it. To search photos "
        "that have no captions, add them to the index of a trained model: "
        f"`{command('index', 'RUN', '--add', folder)}`."
    )


def _leave_out(reason: str, **flags: object) -> None:
    """Reject flags that would have no effect."""
    given = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is not None]
    if given:
        raise UserError(f"{reason}: leave out {' and '.join(given)}.")


@data_app.command
def check(folder: Path, /, *, run: Path | None = None, as_json: Json = False) -> None:
    """Report everything that is wrong or unusual in a data set, and its sizes.

    Errors must be fixed before training, and make the exit code 2; warnings are for you to judge.

    Parameters
    ----------
    folder
        A folder that `aoq data build` wrote, or a SCAN precomp folder.
    run
        A run on this data set; its vocabulary must not hold words that only test captions have.
    as_json
        Print one JSON object.
    """
    from aoq.cli.findings import show_report
    from aoq.data.checks.dataset import check_dataset
    from aoq.runs.checkpoint import trained_vocabulary

    trained = None if run is None else trained_vocabulary(run)
    report = check_dataset(folder, trained=trained, thorough=True)
    if as_json:
        print_json(report.as_dict())
    else:
        show_report(report)
    if report.errors:
        raise UserError(f"{folder} cannot be used as it is; fix the errors of the report first.")
