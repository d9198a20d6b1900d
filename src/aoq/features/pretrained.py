"""Opens pretrained networks of Hugging Face's transformers, by hub name or folder.

A network that is a half of a dual encoder is opened alone, with its projection to the joint space
if that is wanted. What is in a folder or in the cache of the hub is opened without a connection.
Weights are read from safetensors only and no code of a model's repository is ever run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from aoq.errors import UserError, require_packages
from aoq.features.backbones import DEFAULT_BACKBONE
from aoq.progress import is_silent

if TYPE_CHECKING:
    from torch import nn

Half = Literal["vision", "text"]
Loaded = TypeVar("Loaded")
_OTHER_HALF = {"vision": ("text",), "text": ("vis", "image", "pixel")}  # in names of its parts


@dataclass(frozen=True)
class Role:
    """What a pretrained network is used for, as messages say it."""

    noun: str
    expected: str
    instead: str = ""
    "What needs no download, if there is something."


VISION = Role(
    "a backbone",
    "a vision model of transformers with its preprocessor_config.json and safetensors weights",
    f"{DEFAULT_BACKBONE}, ",
)
TEXT = Role(
    "a text tower", "a text model of transformers with its tokenizer and safetensors weights"
)
DUAL = Role(
    "a dual encoder",
    "a CLIP, a SigLIP or another image-text model of transformers with safetensors weights, or "
    "hf-hub:NAME for one of open_clip",
)


def unusable(name: str, reason: object, role: Role) -> UserError:
    in_short = " ".join(str(reason).split()).partition(". ")[0][:200].removesuffix(".")
    return UserError(
        f"{name} cannot be used as {role.noun} ({in_short}); expected {role.expected}."
    )


def load_processor(name: str, role: Role = VISION) -> Any:
    """Load the preprocessing of pictures that belongs to a model."""
    return _load(name, "AutoImageProcessor", role)


def load_tokenizer(name: str, role: Role = TEXT, *, kind: str = "AutoTokenizer") -> Any:
    """Load the tokenizer that belongs to a model; `kind` is the class of transformers.

    transformers reads SigLIP's by sentencepiece, and without it silently as another one, which
    keeps capitals and punctuation.
    """
    if load_config(name, role).model_type == "siglip":
        settings = read_beside(name, "tokenizer_config.json") or {}
        if settings.get("tokenizer_class") == "SiglipTokenizer":
            require_packages("sentencepiece", extra="towers")

    def read(transformers: Any, where: dict[str, Any]) -> Any:
        tokenizer = getattr(transformers, kind).from_pretrained(name, **where)
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
            # transformers makes an empty one where the files are missing.
            raise OSError("it has no tokenizer")
        return tokenizer

    return _read(name, read, role)


def load_config(name: str, role: Role) -> Any:
    """Load the description of a model."""
    return _load(name, "AutoConfig", role)


def has_text_tower(name: str) -> bool:
    """Return whether a model with an image tower describes a text tower too."""
    return hasattr(load_config(name, VISION), "text_config")


def read_beside(name: str, file: str) -> dict[str, Any] | None:
    """Read a JSON file that may be beside the weights of a model; None if there is none."""
    path = Path(name, file) if Path(name).is_dir() else _fetch(name, file)
    try:
        content = None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _fetch(name: str, file: str) -> Path | None:
    """Find a file of a model in the cache of the hub, else on the hub; None if it has none."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    kept = try_to_load_from_cache(name, file)
    if kept is not None:  # the cache also knows what the hub does not have
        return Path(kept) if isinstance(kept, str) else None
    try:
        return Path(hf_hub_download(name, file))
    except RemoteEntryNotFoundError:
        return None
    except Exception as error:
        raise UserError(
            f"whether {name} has a file {file} is not in the cache of Hugging Face, and the hub "
            "cannot be reached; download the whole model on a connected machine and name its "
            "folder, or set HF_ENDPOINT to a mirror."
        ) from error


def fetch_files(name: str, files: Sequence[str], role: Role) -> Path:
    """Find all of `files` that a model has in the cache of the hub, else on the hub.

    Returns their folder. Without a connection, the cache has to hold the first two of them.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [*files]
    with suppress(LocalEntryNotFoundError):
        kept = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        if all((kept / file).is_file() for file in files[:2]):
            return kept
    _require_on_hub(name, role)
    show_bars_of_hub()
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the connection may end, the disk may be full
        raise unusable(name, error, role) from error


def show_bars_of_hub() -> None:
    """Show what is downloaded and uploaded on terminals, and nowhere else."""
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    shows = sys.stderr.isatty() and not is_silent()
    (enable_progress_bars if shows else disable_progress_bars)()


def load_dual_encoder(name: str) -> tuple[nn.Module, set[str]]:
    """Load a whole dual encoder, and the names of weights that its files lack."""
    model, missing = _open_network(name, DUAL)
    if not is_dual_encoder(model):
        raise unusable(name, f"it is a {type(model).__name__}, without the two towers", DUAL)
    return model, missing


def load_whole(name: str, role: Role) -> nn.Module:
    """Load a network as its files hold it: both halves of a dual encoder, or one tower."""
    network: nn.Module = _open_network(name, role, projected=True)[0]
    return network


def load_half(name: str, half: Half, *, projected: bool, role: Role) -> tuple[nn.Module, set[str]]:
    """Load one network, or one half of a dual encoder, in evaluation mode.

    Also returns the names of weights that its files lack. With `projected`, the vector of a dual
    encoder's half is the one that it compares with the other half's.
    """
    model, missing = _open_network(name, role, projected=projected)
    if projected and is_dual_encoder(model):
        return _without_other_half(model, half), missing
    inner = {"vision": "vision_model", "text": "text_model"}[half]
    if not projected and hasattr(model, inner):
        missing = {key.removeprefix(f"{inner}.") for key in missing}
        model = getattr(model, inner)
    return model, missing & model.state_dict().keys()


def describe_network(network: nn.Module) -> dict[str, Any]:
    """Return the settings of a network that its weights do not show, such as its heads."""
    config: Any = next(part.config for part in network.modules() if hasattr(part, "config"))
    settings: dict[str, Any] = config.to_dict()
    about_files = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")
    return {name: value for name, value in settings.items() if name not in about_files}


def is_dual_encoder(model: Any) -> bool:
    """Return whether a network has both towers."""
    return hasattr(model, "get_image_features") and hasattr(model, "get_text_features")


def _without_other_half(model: nn.Module, half: Half) -> nn.Module:
    """Return a dual encoder whose call is that of one half; the other one is dropped."""
    from torch import nn

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: Any) -> Any:
            of_half: Any = {"vision": "get_image_features", "text": "get_text_features"}
            return getattr(self.model, of_half[half])(**inputs)

    for name, _ in [*model.named_children()]:
        if any(mark in name for mark in _OTHER_HALF[half]):
            delattr(model, name)
    return Features()


def _open_network(name: str, role: Role, *, projected: bool = False) -> tuple[Any, set[str]]:
    import torch

    def read(transformers: Any, where: dict[str, Any]) -> tuple[Any, set[str]]:
        config = transformers.AutoConfig.from_pretrained(name, **where)
        kind = transformers.AutoModel
        architecture = next(iter(config.architectures or ()), "")
        if projected and architecture.endswith("WithProjection"):
            kind = getattr(transformers, architecture, kind)
        model, report = kind.from_pretrained(
            name, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **where
        )
        return model.eval(), set(report["missing_keys"])

    return _read(name, read, role)


def _load(name: str, kind: str, role: Role) -> Any:
    return _read(
        name, lambda library, where: getattr(library, kind).from_pretrained(name, **where), role
    )


def _read(name: str, read: Callable[[Any, dict[str, Any]], Loaded], role: Role) -> Loaded:
    """Read from a folder or the cache of the hub, else from the hub."""
    require_packages("transformers", extra="transformers")
    transformers = import_module("transformers")
    where = {"local_files_only": True, "trust_remote_code": False}
    with quiet_transformers():
        try:
            return read(transformers, where)
        except (OSError, ValueError) as error:  # files may be missing in the cache
            if Path(name).is_dir():
                raise unusable(name, error, role) from error
        except Exception as error:  # models raise almost anything
            raise unusable(name, error, role) from error
        _require_on_hub(name, role)
        try:
            return read(transformers, {**where, "local_files_only": False})
        except Exception as error:
            raise unusable(name, error, role) from error


def _require_on_hub(name: str, role: Role) -> None:
    """Raise a `UserError` if the hub does not know a name, or cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=10)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{name} is neither a folder nor a model on the hub of Hugging Face; expected "
            f"{role.instead}the name of {role.expected}, or its folder."
        ) from error
    except Exception as error:
        offline = f", or use {role.instead}which needs no connection" if role.instead else ""
        raise UserError(
            f"{name} is not a folder and not in the cache of Hugging Face, and the hub cannot be "
            "reached; download the model on a connected machine and name its folder, set "
            f"HF_ENDPOINT to a mirror or HF_HOME to a cache that holds it{offline}."
        ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress transformers' progress bars and warnings while a model is loaded."""
    logging: Any = import_module("transformers.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
