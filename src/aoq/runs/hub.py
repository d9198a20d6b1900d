"""Runs on the hub of Hugging Face: `push_run` takes one there, `pull_run` brings one back.

A repository holds the bundle of one trained round and its card. `aoq-manifest.jsonl` lists the
files of the bundle with their hashes; a push replaces these and leaves all others alone. A pull
takes nothing but listed files whose names a bundle may have, and checks each before the run
appears. Nothing of a repository is executed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from aoq.config import RoundName
from aoq.errors import UserError, require_packages
from aoq.features.pretrained import show_bars_of_hub
from aoq.folders import written_folder
from aoq.manifest import NAME as MANIFEST
from aoq.manifest import Version, read_manifest
from aoq.recipes import load_recipe
from aoq.runs.best_round import best_round
from aoq.runs.bundle import WHAT, is_known, write_bundle
from aoq.runs.card import write_card
from aoq.runs.directory import RunDirectory

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationCopy, HfApi
    from huggingface_hub.errors import HfHubHTTPError

CARD = "README.md"
_HOW_TO_NAME = "write it as OWNER/NAME, of letters, digits, hyphens, underscores and dots"
_RETRY = "push again when connected"
_OTHERS = {".gitattributes", CARD}  # files that a repository may have before the first push


@dataclass(frozen=True)
class Upload:
    """What a push takes to the hub: files by their names there, and the card."""

    run: Path
    files: dict[str, Path]
    card: str


@contextmanager
def prepared_upload(
    run: Path | str,
    name: str,
    *,
    round: RoundName | None = None,  # noqa: A002
    licence: str | None = None,
) -> Iterator[Upload]:
    """Yield what a push of the best round of a run, or of the one that is named, uploads."""
    require_packages("huggingface_hub", "jinja2", extra="hub")
    _require_full_name(name)
    trained = RunDirectory(best_round(run, round).path).require_trained()
    with TemporaryDirectory(prefix="aoq-push-") as scratch:
        folder = Path(scratch)
        write_bundle(trained, folder)
        files = {
            file.relative_to(folder).as_posix(): file
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        yield Upload(trained.path, files, write_card(trained, name=name, licence=licence))


def push_run(
    run: Path | str,
    name: str,
    *,
    round: RoundName | None = None,  # noqa: A002
    private: bool = False,
    licence: str | None = None,
) -> str:
    """Upload the best round of a run, or the one that is named, and return its address.

    All files appear in one commit. A repository that holds a run of aoq already is updated; the
    hub keeps its history.
    """
    require_packages("huggingface_hub", extra="hub")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    if get_token() is None:
        raise UserError(
            "a push needs a token of Hugging Face with write access; make one in the settings of "
            "your account there, and set HF_TOKEN to it or log in with `hf auth login`."
        )
    api = HfApi(library_name="aoq")
    with (
        prepared_upload(run, name, round=round, licence=licence) as upload,
        _hub_errors(name, instead=_RETRY),
    ):
        outdated = _pushed_before(api, name) - upload.files.keys()
        address = api.create_repo(name, private=private, exist_ok=True)
        operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
            CommitOperationAdd(CARD, upload.card.encode()),
            *(CommitOperationAdd(place, file) for place, file in upload.files.items()),
            *(CommitOperationDelete(place) for place in sorted(outdated)),
        ]
        api.create_commit(name, operations, commit_message=f"Upload {upload.run.name} with aoq")
    return str(address)


def _pushed_before(api: HfApi, name: str) -> set[str]:
    """Return the files of an earlier push; raise a `UserError` if others use the name."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        present = set(api.list_repo_files(name))
    except RepositoryNotFoundError:
        return set()
    if MANIFEST in present:
        manifest = read_manifest(Path(hf_hub_download(name, MANIFEST)).parent)
        if manifest is not None and manifest.what == WHAT:
            return present & manifest.files.keys()
    elif not present - _OTHERS:
        return set()
    raise UserError(
        f"{name} is on the hub already, and is no run of aoq (it holds "
        f"{min(present - _OTHERS)}); choose another name."
    )


def pull_run(
    name: str, out: Path | str, *, revision: str | None = None, force: bool = False
) -> RunDirectory:
    """Download a run into the folder `out`, which appears when every file has been checked.

    `revision` is a branch, a tag or a commit; default: the newest state.
    """
    require_packages("huggingface_hub", extra="hub")
    _require_full_name(name)
    out = Path(out)
    with written_folder(out, what=WHAT, force=force) as folder:
        snapshot = _download(name, [MANIFEST], revision)
        manifest = read_manifest(snapshot)
        if manifest is None or manifest.what != WHAT:
            found = f"it has no {MANIFEST}" if manifest is None else f"it holds: {manifest.what}"
            raise UserError(
                f"{name} is no run of aoq ({found}); expected one that `aoq push` uploaded."
            )
        unknown = sorted(file for file in manifest.files if not is_known(file))
        if unknown:
            raise UserError(
                f"{name} lists {unknown[0]}, which no run of aoq holds; nothing is pulled from it."
            )
        _download(name, [*manifest.files], snapshot.name)
        for file, versions in manifest.files.items():
            _copy_checked(name, snapshot, file, folder, versions)
        load_recipe(RunDirectory(folder).require_trained().config)
    return RunDirectory(out)


def _download(name: str, files: list[str], revision: str | None) -> Path:
    """Download files of a repository to the cache of the hub; return their folder there."""
    from huggingface_hub import snapshot_download

    patterns = list(map(escape, files))
    with _hub_errors(name, instead="set HF_HOME to a cache that holds it"):
        folder = snapshot_download(
            name, revision=revision, allow_patterns=patterns, library_name="aoq"
        )
    return Path(folder)


def _copy_checked(
    name: str, snapshot: Path, file: str, folder: Path, listed: tuple[Version, ...]
) -> None:
    """Copy a file out of the cache; raise a `UserError` unless it is as its manifest lists it."""
    source, place = snapshot / file, folder / file
    if not source.is_file():
        raise UserError(f"{name} lacks {file} on the hub, so nothing is kept; push it again.")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)
    if Version.of_file(place) not in listed:
        raise UserError(
            f"{file} of {name} is not what was pushed, so nothing is kept; remove "
            f"{snapshot.parents[1]} and pull again, or push it again."
        )


def _require_full_name(name: str) -> None:
    owner, _, rest = name.partition("/")
    if not owner or not rest or "/" in rest:
        raise UserError(f"{name} is not a name that the hub allows; {_HOW_TO_NAME}.")


@contextmanager
def _hub_errors(name: str, *, instead: str) -> Iterator[None]:
    """Turn what goes wrong between here and the hub into one sentence; show bars on terminals.

    `instead` is what helps if the hub cannot be reached.
    """
    from huggingface_hub import errors

    # Of httpx, which huggingface_hub brings in one version or another.
    connection_error = cast("type[Exception]", errors.HfHubHTTPError.__bases__[0])
    show_bars_of_hub()
    try:
        yield
    except errors.HFValidationError as error:
        raise UserError(f"{name} is not a name that the hub allows; {_HOW_TO_NAME}.") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"{name} has no such revision on the hub; leave --revision out, or name a branch, a "
            "tag or a commit of it."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{name} is not on the hub of Hugging Face, or hidden from you; check the name, and "
            "log in with `hf auth login` if it is private."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _unreachable(name, instead) from error
    except errors.HfHubHTTPError as error:
        raise _refused(name, error) from error
    except ValueError as error:
        raise UserError(
            f"the hub does not accept the card of {name} ({_short(error)}); --license names a "
            "licence as the hub does, such as apache-2.0."
        ) from error
    except (connection_error, RuntimeError) as error:  # an upload that is cut is a RuntimeError
        raise _unreachable(name, instead) from error


def _unreachable(name: str, instead: str) -> UserError:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        reason, remedy = "HF_HUB_OFFLINE is set", "unset it"
    else:
        reason, remedy = "the connection to it failed", "set HF_ENDPOINT to a mirror"
    return UserError(f"{name} is on the hub of Hugging Face, and {reason}; {remedy}, or {instead}.")


def _refused(name: str, error: HfHubHTTPError) -> UserError:
    status = error.response.status_code
    if status in (401, 403):
        return UserError(
            f"the hub does not accept the token for {name}; use one with write access to it."
        )
    reason = _short(error.server_message or f"status {status}")
    return UserError(f"the hub refused {name} ({reason}); try again later.")


def _short(reason: object) -> str:
    return " ".join(str(reason).split())[:200].removesuffix(".")
