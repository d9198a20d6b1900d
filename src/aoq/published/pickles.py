"""Safely reads the checkpoints of the published programs (`.pth.tar`), which are pickles.

torch's `weights_only` reader builds tensors and plain containers and rejects everything else. These
files also contain `argparse.Namespace`, which only holds attributes, and numpy scalars, for which
this reader provides stand-ins that can make one number. Files of Python 2 are read in the same way:
their strings are bytes, which Latin-1 decodes unchanged. Content that torch's reader would let grow
far beyond the file (compressed entries, `bytearray(n)`, text encoded again and again) is rejected
before torch sees it.
"""

from __future__ import annotations

import math
import mmap
import pickletools
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from aoq.errors import UserError

PARTS = ("img_enc", "txt_enc", "caption_model")
_NUMBERS = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})
_SHOWN = 160  # characters of a file's content in a message
_GROWING = frozenset({"bytearray", "set", "Counter"})  # torch allows them; no checkpoint needs them
_LONGEST_BYTES = 64  # of a byte string, such as the 8 bytes of a number
_ZIP = b"PK\x03\x04"
_PICKLES = 5  # before the numbers of an old file: magic, version, system, content, keys


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a checkpoint: weights under the program's names, options and progress."""

    state: Mapping[str, Tensor]  # img_enc.*, txt_enc.*, caption_model.*
    options: Mapping[str, Any]
    epoch: int | None
    best_rsum: float | None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a `.pth.tar` of SCAN, BFAN, VSRN, VSE++ or AOQ; nothing in it is executed."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; expected a checkpoint, .pth.tar.")
    content = _load(path)
    if not isinstance(content, dict) or "model" not in content:
        holds = f"keys {', '.join(map(str, content))}" if isinstance(content, dict) else "no keys"
        raise UserError(
            f"{path} is not a checkpoint of a published program: it has {holds[:_SHOWN]}; "
            "expected model, opt, epoch and best_rsum."
        )
    options = content.get("opt")
    epoch = _number(content.get("epoch"))
    return Checkpoint(
        state=_join(path, content["model"]),
        options=_plain_options(options),
        epoch=None if epoch is None else int(epoch),
        best_rsum=_number(content.get("best_rsum")),
    )


def _plain_options(options: object) -> dict[str, Any]:
    """Return the options that are text or finite numbers; others are not needed."""
    values = vars(options) if isinstance(options, Namespace) else options
    if not isinstance(values, dict):
        return {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(name, str) and (isinstance(value, str) or _is_number(value))
    }


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and _number(value) is not None


def _number(value: Any) -> float | None:
    """Return a finite number, also from a tensor of one number; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _join(path: Path, model: object) -> dict[str, Tensor]:
    """Join the state dicts of the parts, without the `module.` prefix of DataParallel."""
    parts = model if isinstance(model, (list, tuple)) else ()
    if len(parts) not in (2, 3) or not all(_is_state(part) for part in parts):
        raise UserError(
            f"{path}: model is {_described(model)}; expected a list of two or three state dicts: "
            "of the image encoder, the text encoder and perhaps the caption model."
        )
    joined = {
        f"{part}.{name.removeprefix('module.')}": value
        for part, state in zip(PARTS, parts, strict=False)
        for name, value in state.items()
    }
    held, size = _bytes_of(joined), path.stat().st_size
    if held > size:
        raise UserError(
            f"{path}: its weights take {held:,} bytes and the file has {size:,}; it is damaged or "
            "made to fill the memory; get it from its authors again."
        )
    return joined


def _bytes_of(state: Mapping[str, Tensor]) -> int:
    """Return the memory of the tensors; shared memory counts once."""
    storages = [value.untyped_storage() for value in state.values()]
    held, end = 0, 0
    for start, length in sorted((storage.data_ptr(), storage.nbytes()) for storage in storages):
        held += max(0, start + length - max(start, end))
        end = max(end, start + length)
    return held


def _is_state(part: object) -> bool:
    return isinstance(part, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) and _is_plain(value)
        for name, value in part.items()
    )


def _is_plain(value: Tensor) -> bool:
    """Return whether a tensor is dense and no larger than the memory that it is a view of.

    Several tensors may still be views of the same memory, and views may leave out some of it.
    """
    is_odd = value.layout != torch.strided or value.is_quantized or value.is_complex()
    if is_odd or value.device.type != "cpu":
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _described(value: object) -> str:
    kind = type(value).__name__
    if not isinstance(value, (list, tuple)):
        return f"of the type {kind}"
    return f"a {kind} of {', '.join(type(item).__name__ for item in value[:4]) or 'nothing'}"


# Pickles


class _NumberType:
    """Stands in for numpy.dtype: stores which type of number it means."""

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


def _make_number(kind: _NumberType, data: bytes | str) -> float:
    """Stand in for numpy's scalar: return the number in these bytes; Python 2 passes text."""
    if type(kind) is not _NumberType or kind.code not in _NUMBERS or kind.order not in "<>=|":
        raise UnpicklingError("a numpy scalar in it is not a number")
    content = data.encode("latin1") if isinstance(data, str) else data
    return float(np.frombuffer(content, np.dtype(kind.order + kind.code), count=1)[0])


_ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    Namespace,
    (_NumberType, "numpy.dtype"),
    (_make_number, "numpy.core.multiarray.scalar"),
    (_make_number, "numpy._core.multiarray.scalar"),
]


def _load(path: Path) -> Any:
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the encoding, and about storages of old files
        try:
            _check_file(file, path)
            with torch.serialization.safe_globals(_ALLOWED):
                return torch.load(file, map_location="cpu", weights_only=True, encoding="latin1")
        except UserError:
            raise
        except Exception as error:  # damaged files make torch raise almost anything
            raise _refusal(path, error) from None


def _check_file(file: IO[bytes], path: Path) -> None:
    """Reject a file that grows when it is loaded; other checks are left to torch."""
    is_zip = file.read(len(_ZIP)) == _ZIP
    file.seek(0)
    if is_zip:
        with zipfile.ZipFile(file) as archive:
            _limit_unpacked_size(archive, path)
            for entry in archive.infolist():
                if entry.filename.lower().endswith("data.pkl"):
                    _check_pickle(archive.read(entry), path)
    elif path.stat().st_size:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for _ in range(_PICKLES):
                if not _check_pickle(content, path):
                    break
    file.seek(0)


def _limit_unpacked_size(archive: zipfile.ZipFile, path: Path) -> None:
    entries = archive.infolist()
    compressed = [
        entry.filename
        for entry in entries
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size
    ]
    if compressed:
        raise UserError(
            f"{path}: its entry {compressed[0][:_SHOWN]} is compressed, so it may become any size; "
            "expected a zip as torch.save writes it, with uncompressed entries; if you "
            "trust it, unpack it and zip the folder again with zip -0."
        )
    held, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if held > size:
        raise UserError(
            f"{path}: its entries take {held:,} bytes and the file has {size:,}, so they overlap; "
            "it is damaged or made to fill the memory; get it from its authors again."
        )


def _check_pickle(content: bytes | mmap.mmap, path: Path) -> bool:
    """Reject calls whose results can far exceed the pickle; return whether it ends properly."""
    steps = _steps(content)
    try:
        for name, argument in steps:
            if name != "GLOBAL":
                continue
            if argument.split(" ")[-1] in _GROWING:
                raise _forbidden(path, argument.replace(" ", "."))
            if argument == "_codecs encode" and not _is_byte_string(list(islice(steps, 4))):
                raise _forbidden(path, "_codecs.encode")
    except ValueError:  # torch stops there too, and reports why
        return False
    return True


def _steps(content: bytes | mmap.mmap) -> Iterator[tuple[str, Any]]:
    """Yield the instructions of a pickle, with memo references replaced by names and texts."""
    kept: dict[Any, tuple[str, Any]] = {}
    last: tuple[str, Any] = ("", None)
    for instruction, argument, _ in pickletools.genops(cast("IO[bytes]", content)):
        if "PUT" in instruction.name:
            kept[argument] = last
            continue
        last = instruction.name, argument
        if "GET" in instruction.name and kept.get(argument, last)[0] in ("GLOBAL", "BINUNICODE"):
            last = kept[argument]
        yield last


def _is_byte_string(steps: list[tuple[str, Any]]) -> bool:
    """Return whether these steps follow `_codecs.encode` where Python 3 pickles short bytes."""
    if [name for name, _ in steps] != ["BINUNICODE", "BINUNICODE", "TUPLE2", "REDUCE"]:
        return False
    (_, text), (_, codec), *_ = steps
    return len(text) <= _LONGEST_BYTES and codec == "latin1"


def _forbidden(path: Path, name: str) -> UserError:
    return UserError(
        f"{path} asks for {name} when it is loaded, which is not among the few things "
        "a checkpoint may hold (tensors, numbers, text and an argparse.Namespace); nothing in "
        "it was run; if you trust its authors, ask them for a file without it."
    )


def _refusal(path: Path, error: Exception) -> UserError:
    """Describe why a file was not read; torch's own message advises loading it anyway."""
    message = str(error)
    forbidden = re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", message)
    if forbidden:
        return _forbidden(path, forbidden[1])
    inner = re.search(r"WeightsUnpickler error:\s*(.+)", message)
    reason = re.split(r"\n|\. ", (inner[1] if inner else message).strip())[0].rstrip(".")
    if " " not in reason:  # the text of a KeyError and the like does not help users
        reason = "it ends too early" if isinstance(error, EOFError) else type(error).__name__
    return UserError(
        f"{path} is not a checkpoint that can be read safely, or it is truncated or damaged at "
        f"{path.stat().st_size:,} bytes ({reason}); nothing in it was run; expected what "
        "torch.save writes by default, in pickle protocol 2; copy the file again."
    )
