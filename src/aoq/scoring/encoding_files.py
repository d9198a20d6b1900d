"""Encodings of a data set that do not fit in memory: computed once, stored in files, read in part.

Images and texts are cut into pieces of consecutive ids, each encoded separately and written whole
or not at all. A piece does not depend on who encodes it or on other pieces, and an existing one is
never computed again: killed work continues where it stopped, processes share the pieces among
them, and finished encodings are a cache, in a folder named after model and data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.manifest import BlockCheck, DamagedFileError, mapped, versions_of
from aoq.progress import progress_bar
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import (
    EncodedDataset,
    Modality,
    PackedEncoding,
    Rows,
    encode_range,
    evaluation_mode,
    word_places,
)
from aoq.scoring.protocol import TrainableModel
from aoq.storage import atomic_file, hash_parts
from aoq.types import Encoding

# Images or texts of a piece: its encodings are held in memory until they are written, 300 MB for
# images with 36 regions of 1,024 numbers. Pieces of another size are rejected.
PIECE_SIZE = 2048
_SPARSE = 8  # rows between those that are selected, from which each is read by itself


def encodings_folder(parent: Path, *, model_hash: str, data: str) -> Path:
    """Return the folder for the encodings of some data by a model, inside `parent`.

    `model_hash` is any text that identifies weights, words and settings of the model.
    """
    return parent / hash_parts(json.dumps([model_hash, data]).encode())[:12]


def encode_to_disk(
    model: TrainableModel,
    collator: Collator,
    folder: Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    batch_size: int = 128,
    description: str = "encode",
) -> None:
    """Encode one process's share of all images and texts, except for existing pieces.

    `open_stored` reads them when all processes have finished. Leftovers of killed processes stay,
    because they may belong to a process that is still writing.
    """
    dataset = collator.dataset
    pieces = [*_pieces("images", len(dataset)), *_pieces("texts", dataset.n_texts)]
    missing = [piece for piece in pieces[rank::world_size] if not piece.within(folder).exists()]
    total = sum(len(piece) for piece in missing)
    with evaluation_mode(model), progress_bar(description, total=total, unit="items") as update:
        for piece in missing:
            encoded = encode_range(
                model, collator, piece.kind, piece.ids, batch_size=batch_size, update=update
            )
            tensors = {"vectors": encoded.vectors}
            if isinstance(encoded, PackedEncoding):
                tensors["lengths"] = encoded.lengths
            with atomic_file(piece.within(folder)) as temporary:
                save_file(tensors, temporary)


def open_stored(
    folder: Path, n_images: int, n_texts: int, device: str | torch.device = "cpu"
) -> EncodedDataset[Encoding]:
    """Open the files of `encode_to_disk`; rows are read, and go to `device`, when selected."""
    return EncodedDataset(
        images=open_rows(folder, "images", n_images, device=device),
        texts=open_rows(folder, "texts", n_texts, device=device),
        device=device,
    )


def open_rows(
    folder: Path, kind: Modality, count: int, *, device: str | torch.device = "cpu"
) -> StoredRows:
    """Open the files of the images only, or of the texts; at least one row is expected."""
    parts = [_open_piece(piece.within(folder), count=len(piece)) for piece in _pieces(kind, count)]
    return replace(join_rows(parts), device=device)


def copy_rows(rows: Rows[Encoding], selected: Tensor, folder: Path, kind: Modality) -> None:
    """Write some rows as the files of a data set that consists of them."""
    for piece in _pieces(kind, len(selected)):
        encoded = rows[selected[piece.ids]]
        if encoded.mask is None:
            tensors = {"vectors": encoded.vectors.cpu()}
        else:
            mask = encoded.mask.cpu()
            tensors = {"vectors": encoded.vectors.cpu()[mask], "lengths": mask.sum(dim=1)}
        with atomic_file(piece.within(folder)) as temporary:
            save_file(tensors, temporary)


def remove_rows(folder: Path, kind: Modality) -> None:
    """Remove the files of the images or texts of a folder, which are kept elsewhere."""
    for path in folder.glob(f"{kind}-*.safetensors"):
        if versions_of(path):
            path.unlink()


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Encoded images or texts in files; memory holds only the selected rows.

    Rows are copied out of the mapped file, which is closed at once: mapped pages count as memory
    of the process, and are lost if another program truncates the file.
    """

    paths: tuple[Path, ...]
    ends: Tensor  # (pieces,), cumulative number of vectors per file
    vector_shape: tuple[int, ...]  # (D,), or (R, D) for images with regions
    dtype: torch.dtype
    files: tuple[CheckedFile, ...]  # one per path
    lengths: Tensor | None = None  # (M,), for texts with a vector per word
    device: str | torch.device = "cpu"

    @cached_property
    def _starts(self) -> Tensor:
        """The first vector of each row. (N,) or (M,)"""
        if self.lengths is None:
            return torch.arange(int(self.ends[-1]))
        return self.lengths.cumsum(dim=0) - self.lengths

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, rows: slice | Tensor) -> Encoding:
        rows = rows if isinstance(rows, slice) else rows.cpu()
        starts = self._starts[rows].contiguous()
        if self.lengths is None:
            vectors = torch.empty(len(starts), *self.vector_shape, dtype=self.dtype)
            self._copy(starts, vectors, torch.arange(len(starts)))
            return Encoding(vectors.to(self.device))
        places, mask = word_places(starts, self.lengths[rows])
        vectors = torch.zeros(*mask.shape, *self.vector_shape, dtype=self.dtype)
        self._copy(places[mask], vectors.flatten(0, 1), mask.flatten().nonzero()[:, 0])
        return Encoding(vectors.to(self.device), mask.to(self.device))

    def _copy(self, sources: Tensor, vectors: Tensor, targets: Tensor) -> None:
        """Read the vectors `sources`, numbered through all files, to the rows `targets`."""
        pieces = torch.bucketize(sources, self.ends, right=True)
        for piece in pieces.unique().tolist():
            here = pieces == piece
            inside = sources[here] - (self.ends[piece - 1] if piece else 0)
            wanted = slice(int(inside.min()), int(inside.max()) + 1)
            try:
                if wanted.stop - wanted.start > _SPARSE * len(inside):
                    content = self.files[piece].read_rows(inside.tolist())
                    read = torch.frombuffer(content, dtype=self.dtype)
                    vectors[targets[here]] = read.view(len(inside), *self.vector_shape)
                    continue
                self.files[piece].check_rows(wanted)
                with safe_open(self.paths[piece], framework="pt") as file:
                    stored = file.get_slice("vectors")[wanted]
            except (SafetensorError, OSError, DamagedFileError) as error:
                raise _unusable(self.paths[piece], str(error)) from None
            if not (inside.diff() == 1).all():  # otherwise they are consecutive
                stored = stored[inside - inside.min()]
            vectors[targets[here]] = stored

    @property
    def nbytes(self) -> int:
        return self._starts.nbytes + (0 if self.lengths is None else self.lengths.nbytes)

    @property
    def row_nbytes(self) -> int:
        longest = 1 if self.lengths is None else int(self.lengths.max())
        return longest * math.prod(self.vector_shape) * self.dtype.itemsize


class CheckedFile:
    """Checks a file of encodings against its folder's manifest: each block once, when it is read.

    The header and everything but the vectors are checked when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self._blocks = BlockCheck(path)
        self._start = self._row_bytes = 0
        content = mapped(path)
        data = min(8 + int.from_bytes(content[:8], "little"), len(content))
        self._blocks.check(content, 0, data)
        for name, entry in json.loads(bytes(content[8:data])).items():
            start, stop = entry.get("data_offsets", (0, 0))
            if name == "vectors":
                self._start = data + start
                self._row_bytes = (stop - start) // max(entry["shape"][0], 1)
            else:
                self._blocks.check(content, data + start, data + stop)

    def read_rows(self, rows: Sequence[int]) -> bytearray:
        """Read some vectors, each by itself: what lies between them may be much more."""
        content = bytearray(len(rows) * self._row_bytes)
        with self._blocks.path.open("rb", buffering=0) as file:
            for number, row in enumerate(rows):
                self.check_rows(slice(row, row + 1))
                file.seek(self._start + row * self._row_bytes)
                place = memoryview(content)[number * self._row_bytes :][: self._row_bytes]
                if file.readinto(place) != self._row_bytes:
                    raise OSError(f"row {row} is cut short")
        return content

    def check_rows(self, rows: slice) -> None:
        """Check the vectors that are about to be read."""
        start, stop = (self._start + row * self._row_bytes for row in (rows.start, rows.stop))
        if not self._blocks.is_checked(start, stop):
            self._blocks.check(mapped(self._blocks.path), start, stop)


@dataclass(frozen=True)
class _Piece:
    """Consecutive images or texts that share a file."""

    kind: Modality
    number: int
    ids: slice

    def __len__(self) -> int:
        return int(self.ids.stop - self.ids.start)

    def within(self, folder: Path) -> Path:
        return folder / f"{self.kind}-{self.number:05}.safetensors"


def _pieces(kind: Modality, count: int) -> list[_Piece]:
    return [_Piece(kind, number, ids) for number, ids in enumerate(ranges(count, PIECE_SIZE))]


def join_rows(parts: Sequence[StoredRows]) -> StoredRows:
    """Join the rows of all parts, one after the other, if they are alike."""
    first = parts[0]
    for part in parts:
        if _layout(part) != _layout(first):
            raise _unusable(
                part.paths[0],
                f"it holds {_layout(part)}, {first.paths[0].name} holds {_layout(first)}",
            )
    lengths = [part.lengths for part in parts if part.lengths is not None]
    counts = [part.ends.diff(prepend=part.ends.new_zeros(1)) for part in parts]
    return replace(
        first,
        paths=tuple(path for part in parts for path in part.paths),
        files=tuple(file for part in parts for file in part.files),
        ends=torch.cat(counts).cumsum(dim=0),
        lengths=torch.cat(lengths) if lengths else None,
    )


def _open_piece(path: Path, *, count: int) -> StoredRows:
    """Open the rows of one file, if there are `count` of them."""
    try:
        checked = CheckedFile(path)
        with safe_open(path, framework="pt") as file:
            names, stored = file.keys(), file.get_slice("vectors")
            shape, dtype = tuple(stored.get_shape()), stored[:1].dtype
            lengths = file.get_tensor("lengths").clone() if "lengths" in names else None
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run again: existing files are kept.") from None
    except (SafetensorError, OSError, ValueError, KeyError, DamagedFileError) as error:
        raise _unusable(path, str(error)) from None
    found = shape[0] if lengths is None else len(lengths)
    if found != count:
        raise _unusable(path, f"it holds {found} rows; expected {count}")
    if lengths is not None and int(lengths.sum()) != shape[0]:
        raise _unusable(path, f"it holds {shape[0]} words; expected {int(lengths.sum())}")
    return StoredRows((path,), torch.tensor([shape[0]]), shape[1:], dtype, (checked,), lengths)


def _layout(rows: StoredRows) -> str:
    """Describe the layout of a row."""
    unit = "row" if rows.lengths is None else "word"
    return f"{str(rows.dtype).removeprefix('torch.')} {rows.vector_shape} per {unit}"


def _unusable(path: Path, problem: str) -> UserError:
    return UserError(
        f"{path} holds no encodings of this model and data ({problem}); delete the folder "
        f"{path.parent} and run again."
    )
