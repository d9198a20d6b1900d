"""`aoq import`: make runs of pretrained models, and from published files."""

from __future__ import annotations

from pathlib import Path

from aoq.cli.base import Flag, app, command, next_steps
from aoq.config import ModelName
from aoq.errors import UserError

_CHECKPOINTS = (".tar", ".pth", ".pt", ".bin")  # endings of pickled weights


@app.command(name="import")
def import_(
    source: str,
    /,
    *,
    out: Path | None = None,
    default: Flag = False,
    prompt: str = "{}",
    data: Path | None = None,
    vocabulary: Path | None = None,
    i2t: Path | None = None,
    t2i: Path | None = None,
    model: ModelName | None = None,
    force: Flag = False,
) -> None:
    """Make a run of a pretrained dual encoder, or from files that others published.

    A CLIP, a SigLIP or another dual encoder of transformers is named by its folder or by its name
    on the hub of Hugging Face, and can be searched without data and without training. The files of
    SCAN, BFAN, VSRN, VSE++ and AOQ need --vocabulary.

    Nothing in these files is executed, and only weights in safetensors are read of a pretrained
    model; a checkpoint with more than weights and options is rejected.

    Parameters
    ----------
    source
        Name or folder of a pretrained model, or a published model, .pth.tar.
    out
        Folder of the run; with --default it may be left out, and is in the cache then.
    default
        Search folders of photos with this model from now on, as `aoq search photos "a dog"`.
    prompt
        Sentence that every text is put into, such as 'a photo of {}', for a pretrained model.
    data
        Data set of the run; candidate lists are checked against it.
    vocabulary
        The vocabulary that a published model was trained with, .json or .pkl.
    i2t
        Published candidate lists of the images, .npy.
    t2i
        Published candidate lists of the texts, .npy.
    model
        Which model a published one is, if its checkpoint does not state it.
    force
        Replace `out` if it is a run.
    """
    if _is_checkpoint(source, vocabulary):
        if prompt != "{}":
            raise UserError("--prompt is for a pretrained model; leave it out for a checkpoint.")
        if default or out is None:
            raise UserError("a checkpoint needs --out, and cannot be the default; name a folder.")
        if vocabulary is None:
            raise UserError(
                f"{source} is a checkpoint; name the vocabulary it was trained with, with "
                "--vocabulary, or name the folder of a pretrained model."
            )
        _import_published(
            Path(source), vocabulary, out=out, data=data, lists=(i2t, t2i), model=model, force=force
        )
        return
    if i2t is not None or t2i is not None or model is not None:
        raise UserError(
            f"--i2t, --t2i and --model are for published checkpoints, which need --vocabulary, and "
            f"{source} is read as a pretrained model; leave them out."
        )
    from aoq.published.dual_encoders import import_dual_encoder

    place = _place(source, out, default=default)
    if not (default and out is None and place.is_dir() and not force):  # it is there already
        import_dual_encoder(place, source, prompt=prompt, data=data, force=force)
    if default:
        _set_default(place)
        return
    out = place
    pictures = () if data is not None else ("--pictures", "FOLDER")
    next_steps(command("index", out, *pictures), command("search", out, "a dog in the snow"))


def _place(source: str, out: Path | None, *, default: bool) -> Path:
    """Return where the run is written: where --out says, or for a default in the cache."""
    if out is not None:
        return out
    if not default:
        raise UserError("give the folder of the run with --out, or add --default.")
    from aoq.retrieval.default_model import place_of

    return place_of(source)


def _set_default(run: Path) -> None:
    from aoq.progress import say
    from aoq.retrieval.default_model import set_default_model

    say(f"{run} searches folders of photos from now on, as {set_default_model(run)} says")
    next_steps(command("search", "PHOTOS", "a dog in the snow"))


def _is_checkpoint(source: str, vocabulary: Path | None) -> bool:
    """Return whether a file of a published program is meant."""
    path = Path(source)
    is_named_so = path.suffix in _CHECKPOINTS and not path.is_dir()
    return vocabulary is not None or path.is_file() or is_named_so


def _import_published(
    checkpoint: Path,
    vocabulary: Path,
    *,
    out: Path,
    data: Path | None,
    lists: tuple[Path | None, Path | None],
    model: ModelName | None,
    force: bool,
) -> None:
    from aoq.published.importer import PublishedFiles, import_run

    i2t, t2i = lists
    files = PublishedFiles(checkpoint=checkpoint, vocabulary=vocabulary, i2t=i2t, t2i=t2i)
    run = import_run(out, files, data=data, model=model, force=force)
    place = () if data is not None else ("--data", "FOLDER")
    next_steps(command("evaluate", out, *place))
    if i2t is None:
        next_steps(command("mine", out, *place))
    else:
        candidates = ("--candidates", run.candidates)
        next_steps(
            command("train", "RECIPE", "--round", "two", *candidates, "--data", data) + " --out ..."
        )
