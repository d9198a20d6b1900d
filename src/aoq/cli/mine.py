"""`aoq mine`, `aoq mine inspect` and `aoq mine export`: candidate lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from aoq.cli.base import (
    Count,
    Flag,
    ModelFunction,
    Seed,
    Which,
    app,
    command,
    next_steps,
    own_model,
    trained_rounds,
)
from aoq.config import Precision, Product
from aoq.errors import UserError

if TYPE_CHECKING:
    from aoq.data.dataset import PairDataset
    from aoq.mining.candidates import CandidateLists

mine_app = App(name="mine")
app.command(mine_app)


@mine_app.default
def mine(
    *runs: Path,
    out: Path | None = None,
    data: Path | None = None,
    proposals: Path | None = None,
    sample: Annotated[int, Parameter(validator=Number(gte=0))] = 100,
    depth_texts: Count | None = None,
    depth_images: Count | None = None,
    memory: str | None = None,
    precision: Precision | None = None,
    product: Product | None = None,
    skip_first: int | None = None,
    score_share: float | None = None,
    equal_captions: bool | None = None,
    near_captions: float | None = None,
    estimate_matches: bool | None = None,
    force: Flag = False,
    round: Which = None,  # noqa: A002
    model: ModelFunction = None,
) -> None:
    """Rank the whole training set with a trained model and keep the hardest negatives.

    If interrupted, the same command continues. With many cores or machines:
    `torchrun --nproc-per-node 4 -m aoq mine RUN`.

    Parameters
    ----------
    runs
        Folder of a run, whose best round mines, or of a round; several mine as an ensemble (mean
        score).
    out
        File to write; default: candidates.safetensors in the (first) round.
    data
        Data set to mine; default: the one the model was trained on.
    proposals
        Deep lists of a faster model, for a model that is too slow to rank everything (scan, bfan):
        it then ranks only what these lists hold.
    sample
        Images, and texts, that are ranked once more to report what the rules drop and how much
        rounding and --proposals miss; 0 for none.
    depth_texts
        Hardest texts kept for each image; this and the following default to the run's recipe.
    depth_images
        Hardest images kept for each text.
    memory
        Budget for lists, blocks of scores and their inputs, such as 4GiB.
    precision
        Round encodings to float16 or bfloat16 before they are scored.
    product
        How the same lists are found: by float32 products of all pairs, or by products in bfloat16
        or int8 and float32 scores of the pairs that may enter a list; auto: whichever is fastest.
    skip_first
        Against false negatives: leave out the first N candidates of every list.
    score_share
        Against false negatives: drop candidates above this share of the best positive (0.95).
    equal_captions
        Against false negatives: drop captions with the same words as one of the image's own.
    near_captions
        Against false negatives: drop captions with this share of words (0.8) in common with one.
    estimate_matches
        Store with each candidate the probability that it is right, a false negative.
    force
        Replace `out` if it exists.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    """
    from rich.console import Console

    from aoq.cli.mining_report import report_view
    from aoq.distributed import join_processes
    from aoq.folders import check_output_file, is_own_file
    from aoq.mining.report import MiningReport, report_file
    from aoq.recipes import load_recipe
    from aoq.runs.directory import RunDirectory
    from aoq.runs.encodings import own_data
    from aoq.runs.mine import mine_run

    runs = trained_rounds(runs, round)
    make_model = own_model(model, runs)
    directory = RunDirectory(runs[0])
    out = out or directory.candidates
    check_output_file(out, force=force)
    check_output_file(report_file(out), force=force or is_own_file(report_file(out)))
    flags = {
        "depth_texts": depth_texts,
        "depth_images": depth_images,
        "memory": memory,
        "precision": precision,
        "product": product,
        "skip_first": skip_first,
        "score_share": score_share,
        "equal_captions": equal_captions,
        "near_captions": near_captions,
        "estimate_matches": estimate_matches,
    }
    changes: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    config = replace(load_recipe(directory.config).mining, **changes)
    with join_processes() as processes:
        mine_run(
            runs,
            out,
            data=data,
            config=config,
            proposals=proposals,
            sample=sample,
            processes=processes,
            make_model=make_model,
        )
        if processes.is_first:
            Console().print(report_view(MiningReport.load(report_file(out))))
            is_known = out == directory.candidates and data is None
            place = () if is_known else ("--data", data or own_data(directory.path))
            next_steps(command("mine", "inspect", out, *place))


@mine_app.command
def inspect(
    lists: Path,
    /,
    *,
    data: Path | None = None,
    image: tuple[str, ...] = (),
    text: tuple[str, ...] = (),
    depth: Count = 10,
    html: Path | None = None,
    seed: Seed = 0,
    force: Flag = False,
) -> None:
    """Show the candidate lists of some images and texts.

    Parameters
    ----------
    lists
        Candidate lists, as `aoq mine` writes them.
    data
        Data set on which they were mined; default: that of the run whose folder holds them.
    image
        Image to show, by id, file name or number; can be repeated.
    text
        Text to show, by id, number or (part of) its words; can be repeated.
    depth
        Candidates to show of each list.
    html
        Also write a page with pictures.
    seed
        Seed of the choice of images and texts if none is given.
    force
        Replace `html` if it exists.
    """
    from rich.console import Console

    from aoq.folders import check_output_file, remember_file
    from aoq.mining.inspection import (
        find_image,
        find_text,
        sample_anchors,
        terminal_view,
        write_inspection,
    )
    from aoq.progress import say

    if html is not None:
        check_output_file(html, force=force)
    candidates, dataset = _open_lists(lists, data)
    anchors = [find_image(dataset, wanted) for wanted in image]
    anchors += [find_text(dataset, wanted) for wanted in text]
    anchors = anchors or sample_anchors(dataset, seed=seed)
    Console().print(terminal_view(candidates, dataset, anchors, depth=depth))
    if html is not None:
        write_inspection(html, candidates, dataset, anchors, depth=depth)
        remember_file(html)
        say(f"the page: {html}")
    next_steps(command("mine", "export", lists, "--out", "lists"))


@mine_app.command
def export(
    lists: Path,
    /,
    *,
    data: Path | None = None,
    out: Path,
    form: Literal["jsonl", "npy"] = "jsonl",
    depth: Count | None = None,
    force: Flag = False,
) -> None:
    """Write candidate lists for other programs.

    Parameters
    ----------
    lists
        Candidate lists, as `aoq mine` writes them.
    data
        Data set on which they were mined; default: that of the run whose folder holds them.
    out
        Folder to write to: i2t and t2i, as .jsonl or .npy.
    form
        jsonl: lines of anchor, positive and negatives; npy: ids only, as AOQ's program reads them.
    depth
        Candidates of each list to write, hardest first; default: all. Shorter lists are written
        whole.
    force
        Replace files that exist.
    """
    from aoq.folders import check_output_file, remember_file
    from aoq.mining.export import export_lists
    from aoq.progress import count_of, say
    from aoq.published.lists import write_published_lists

    i2t, t2i = (out / f"{side}.{form}" for side in ("i2t", "t2i"))
    for file in (i2t, t2i):
        check_output_file(file, force=force)
    candidates, dataset = _open_lists(lists, data)
    texts, images = candidates.depth_texts, candidates.depth_images
    if depth is not None and depth > max(texts, images):
        raise UserError(
            f"{lists} is {texts} texts and {images} images deep; expected a depth of 1 to "
            f"{max(texts, images)}."
        )
    candidates = candidates.cut(depth)
    if form == "npy":
        write_published_lists(candidates, i2t, t2i)
    else:
        export_lists(candidates, dataset, i2t, direction="i2t")
        export_lists(candidates, dataset, t2i, direction="t2i")
    for file in (i2t, t2i):
        remember_file(file)
    say(
        f"written: {i2t} ({count_of(candidates.depth_texts, 'text')} for each image) and {t2i} "
        f"({count_of(candidates.depth_images, 'image')} for each text)"
    )
    next_steps("docs/elsewhere.md has the programs that read them")


def _open_lists(lists: Path, data: Path | None) -> tuple[CandidateLists, PairDataset]:
    """Open lists and the training set they belong to."""
    from aoq.data.splits import open_dataset
    from aoq.mining.candidates import CandidateLists
    from aoq.recipes import load_recipe
    from aoq.runs.directory import RunDirectory

    config = RunDirectory(lists.parent).config
    own = load_recipe(config).data if config.is_file() else ""
    if data is None and not own:
        raise UserError(f"{lists} is not in the folder of a run; name its data with --data.")
    dataset = open_dataset(data or Path(own), "train")
    return CandidateLists.load(lists).require_fit(dataset, source=lists), dataset
