"""`aoq push`, `aoq pull` and `aoq export`: take runs elsewhere, and bring them back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from aoq.cli.base import Flag, Which, app, command, next_steps, trained_round


@app.command
def push(
    run: Path,
    name: str,
    /,
    *,
    round: Which = None,  # noqa: A002
    private: Flag = False,
    licence: Annotated[str | None, Parameter(name=["--license", "--licence"])] = None,
    plan: Flag = False,
) -> None:
    """Upload a run to the hub of Hugging Face, with a model card made from it.

    Weights, settings and results are uploaded, not the data set and not the state of the training.
    Pretrained networks that are folders on this machine are uploaded too; those of the hub are
    named only. It needs a token (HF_TOKEN, or `hf auth login`); HF_ENDPOINT names another hub.

    Parameters
    ----------
    run
        Folder of a trained model; if the run has two rounds, the better one on dev is used.
    name
        OWNER/NAME on the hub; a run that is there already is updated.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    private
        Make a new repository private.
    licence
        Licence of the run, such as apache-2.0; default: that of its pretrained networks, if it is
        known and they share one.
    plan
        Print the files and the card, and upload nothing.
    """
    from aoq.progress import say
    from aoq.runs.hub import prepared_upload, push_run

    run = trained_round(run, round)
    if plan:
        with prepared_upload(run, name, licence=licence) as upload:
            for place, file in upload.files.items():
                say(f"{place}  {file.stat().st_size:,} bytes")
            say(f"README.md:\n\n{upload.card}")
        return
    say(f"pushed: {push_run(run, name, private=private, licence=licence)}")
    next_steps(command("pull", name, "--out", "RUN"))


@app.command
def pull(name: str, /, *, out: Path, revision: str | None = None, force: Flag = False) -> None:
    """Download a run that `aoq push` uploaded to the hub of Hugging Face.

    Every file is checked against the hashes that were uploaded with it before the run appears, and
    none is executed. HF_ENDPOINT names another hub, HF_HOME the folder of its cache.

    Parameters
    ----------
    name
        OWNER/NAME on the hub.
    out
        Folder of the run.
    revision
        Branch, tag or commit; default: the newest state.
    force
        Replace `out` if it is a run.
    """
    from aoq.progress import say
    from aoq.runs.hub import pull_run

    run = pull_run(name, out, revision=revision, force=force)
    say(f"pulled: {run.path}")
    next_steps(
        command("index", out, "--pictures", "PHOTOS", "--without-data"),
        command("evaluate", out, "--data", "FOLDER"),
    )


@app.command
def export(
    run: Path,
    /,
    *,
    out: Path,
    format: Literal["transformers", "sentence-transformers"] = "transformers",  # noqa: A002
    round: Which = None,  # noqa: A002
    force: Flag = False,
) -> None:
    """Save trained towers as a plain folder of transformers or sentence-transformers.

    Adapters are merged. The folder is read again and compared with the run before it appears.

    Parameters
    ----------
    run
        Folder of a run of towers; if it has two rounds, the better one on dev is used.
    out
        Folder to write.
    format
        transformers, for towers without heads (--model.head none), or sentence-transformers.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    force
        Replace `out` if it is an exported model.
    """
    from aoq.progress import say
    from aoq.runs.export import export_run

    say(f"exported: {export_run(trained_round(run, round), out, format=format, force=force)}")
    if format == "transformers":
        next_steps(command("import", out, "--out", f"runs/{out.name}"))
    else:
        next_steps(f"SentenceTransformer({str(out)!r}) in Python")
