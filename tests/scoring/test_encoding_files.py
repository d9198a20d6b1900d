"""Encodings on disk: the same bytes whoever writes them, the same rows as in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from aoq.errors import UserError
from aoq.scoring import encoding_files
from aoq.scoring.blocks import block_size_within
from aoq.scoring.encoded import EncodedDataset, encode_dataset
from aoq.scoring.encoding_files import (
    StoredRows,
    copy_rows,
    encode_to_disk,
    encodings_folder,
    open_rows,
    open_stored,
)
from aoq.storage import atomic_folder
from aoq.types import Encoding
from tests.conftest import uneven_dataset
from tests.scoring.cases import REGION_MODELS, collator_of, small_model, vocabulary_of

MAPS = Path("/proc/self/maps")
DATASET = uneven_dataset(images=11)
N_IMAGES, N_TEXTS = len(DATASET), DATASET.n_texts


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    """Three pieces of images, several of texts, the last of each cut short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding_files, "PIECE_SIZE", 4)
        yield
    assert N_IMAGES % 4
    assert N_TEXTS % 4


def model_of(name):
    return small_model(name, vocabulary=vocabulary_of(DATASET))


def write(name, folder, **options):
    encode_to_disk(model_of(name), collator_of(DATASET), folder, batch_size=3, **options)
    return folder


def contents(*folders):
    """Name and bytes of every piece."""
    return {
        path.name: path.read_bytes()
        for folder in folders
        for path in folder.glob("*")
        if not path.name.startswith(".")
    }


def open_all(folder):
    return open_stored(folder, N_IMAGES, N_TEXTS)


def assert_same_rows(taken, expected):
    assert torch.equal(taken.vectors, expected.vectors)
    assert (taken.mask is None) == (expected.mask is None)
    assert taken.mask is None or torch.equal(taken.mask, expected.mask)


@pytest.mark.parametrize("name", REGION_MODELS)
@pytest.mark.parametrize("world_size", [2, 3, 20])
def test_processes_share_the_pieces_evenly_and_write_the_same_bytes(tmp_path, name, world_size):
    alone = contents(write(name, tmp_path / "alone"))
    shares = []
    for rank in range(world_size):
        folder = tmp_path / str(rank)
        write(name, folder, rank=rank, world_size=world_size)
        shares.append(contents(folder))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert sum(map(len, shares)) == len(alone)
    assert {name: piece for share in shares for name, piece in share.items()} == alone


@pytest.mark.parametrize("name", ["vse", "scan"])
def test_work_that_was_killed_goes_on_and_keeps_what_is_there(tmp_path, name):
    folder = write(name, tmp_path / "encodings")
    whole = contents(folder)
    lost = ["images-00001.safetensors", "texts-00000.safetensors", "texts-00003.safetensors"]
    for file in lost:
        (folder / file).unlink()
    leftover = folder / ".texts-00003.safetensors.x1y2z3.part"
    leftover.write_bytes(b"half of a pie")
    kept = {path: path.stat().st_ino for path in folder.glob("*.safetensors")}
    for rank in range(2):
        write(name, folder, rank=rank, world_size=2)
    assert contents(folder) == whole
    assert {path: path.stat().st_ino for path in kept} == kept
    assert leftover.exists()  # it may be the work of a process that is still at it
    assert len(open_all(folder).texts) == N_TEXTS


def test_a_piece_is_whole_or_absent_when_encoding_stops_within_it(tmp_path):
    whole = contents(write("scan", tmp_path / "whole"))
    model, calls = model_of("scan"), []
    encode_texts = model.encode_texts

    def interrupted(texts):
        calls.append(texts)
        if len(calls) == 4:  # two batches a piece: in the middle of the second
            raise KeyboardInterrupt
        return encode_texts(texts)

    model.encode_texts = interrupted
    folder = tmp_path / "interrupted"
    with pytest.raises(KeyboardInterrupt):
        encode_to_disk(model, collator_of(DATASET), folder, batch_size=3)
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"images-0000{number}.safetensors" for number in range(3)),
        "texts-00000.safetensors",
    ]
    assert contents(write("scan", folder)) == whole


def test_finished_encodings_are_not_computed_again(tmp_path):
    folder = write("vse", tmp_path / "encodings")

    def encode(_):
        raise AssertionError("encoded again")

    model = model_of("vse")
    model.encode_images = model.encode_texts = encode
    encode_to_disk(model, collator_of(DATASET), folder)
    (folder / "texts-00001.safetensors").unlink()
    with pytest.raises(AssertionError, match="encoded again"):
        encode_to_disk(model, collator_of(DATASET), folder)


@pytest.fixture(scope="module", params=REGION_MODELS)
def both_ways(request, small_pieces, tmp_path_factory):
    """In memory and stored; one item a batch, so that batches do not differ either."""
    model, collator = model_of(request.param), collator_of(DATASET)
    folder = tmp_path_factory.mktemp(request.param)
    encode_to_disk(model, collator, folder, batch_size=1)
    return encode_dataset(model, collator, batch_size=1), open_all(folder)


@pytest.mark.parametrize("kind", ["images", "texts"])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_rows_taken_out_are_those_in_memory(both_ways, kind, data):
    expected, encoded = (getattr(part, kind) for part in both_ways)
    count = len(expected)
    start = data.draw(st.integers(0, count - 1))
    rows = slice(start, data.draw(st.integers(start + 1, count)), data.draw(st.integers(1, 3)))
    assert_same_rows(encoded[rows], expected[rows])
    ids = st.lists(st.integers(-count, count - 1), min_size=1, max_size=2 * count)
    rows = torch.tensor(data.draw(ids))
    assert_same_rows(encoded[rows], expected[rows])


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_all_rows_are_those_in_memory_and_as_large(both_ways, kind):
    expected, encoded = (getattr(part, kind) for part in both_ways)
    assert len(encoded) == len(expected)
    assert_same_rows(encoded[:], expected[:])
    assert encoded[:].vectors.dtype == torch.float32
    assert encoded.row_nbytes == expected.row_nbytes


def test_encodings_on_disk_do_not_count_against_a_budget():
    ends = torch.tensor([113_287])
    images = StoredRows((Path("unread"),), ends, (2048,), torch.float32, files=())
    lengths = torch.full((566_435,), 12)
    texts = StoredRows((Path("unread"),), ends, (1024,), torch.float32, (), lengths)
    assert images.nbytes + texts.nbytes < 2**24
    assert (images.row_nbytes, texts.row_nbytes) == (2048 * 4, 12 * 1024 * 4)
    assert block_size_within("1GiB", EncodedDataset(images, texts)) > 4096


@pytest.mark.parametrize("name", ["vse", "scan"])
@pytest.mark.parametrize("rows", [slice(0, 3), slice(2, 7), torch.tensor([6, 0, 6])])
def test_rows_taken_out_have_nothing_to_do_with_the_file_any_more(tmp_path, name, rows):
    folder = write(name, tmp_path / "encodings")
    encoded = open_all(folder)
    taken = encoded.texts[rows]
    before = taken.vectors.clone()
    for path in folder.iterdir():
        with path.open("r+b") as file:
            header = 8 + int.from_bytes(file.read(8), "little")
            file.seek(header)
            file.write(bytes(path.stat().st_size - header))
    assert torch.equal(taken.vectors, before)
    assert not torch.equal(encoded.texts[rows].vectors, before)


@pytest.mark.skipif(not MAPS.exists(), reason="mappings are listed on Linux only")
def test_no_file_stays_mapped_when_its_rows_are_read(tmp_path):
    folder = write("scan", tmp_path / "encodings")
    encoded = open_all(folder)
    held = encoded.images[:], encoded.texts[:], encoded.texts[torch.tensor([3, 1])]
    assert str(folder) not in MAPS.read_text()
    assert all(len(encoding) for encoding in held)


def changed(change):
    """Damage that rewrites the tensors of a piece."""

    def damage(path):
        save_file(change(load_file(path)), path)

    return damage


DAMAGES = {
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-4]), "not fully covered"),
    "empty": (lambda path: path.write_bytes(b""), "cannot mmap an empty file"),
    "no vectors": (changed(lambda piece: {"lengths": piece["lengths"]}), "vectors"),
    "fewer texts": (
        changed(lambda piece: {**piece, "lengths": piece["lengths"][:3].clone()}),
        "it holds 3 rows; expected 4",
    ),
    "fewer words": (
        changed(lambda piece: {**piece, "vectors": piece["vectors"][1:].clone()}),
        r"it holds \d+ words; expected \d+",
    ),
    "another width": (
        changed(lambda piece: {**piece, "vectors": piece["vectors"][:, :5].clone()}),
        r"it holds float32 \(5,\) per word, texts-00000.safetensors holds float32 \(8,\) per word",
    ),
    "another type": (
        changed(lambda piece: {**piece, "vectors": piece["vectors"].double()}),
        r"it holds float64 \(8,\) per word, texts-00000.safetensors holds float32",
    ),
    "one vector a text": (
        changed(lambda piece: {"vectors": piece["vectors"][:4].clone()}),
        r"it holds float32 \(8,\) per row, texts-00000.safetensors holds float32 \(8,\) per word",
    ),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_piece_is_named_with_what_to_do(tmp_path, damage, sentence):
    folder = write("scan", tmp_path / "encodings")
    damage(folder / "texts-00002.safetensors")
    expected = rf"texts-00002.* \(.*{sentence}.*\); delete the folder {folder} and run again\.$"
    with pytest.raises(UserError, match=expected):
        open_all(folder)


def test_a_missing_piece_is_named_with_what_to_do(tmp_path):
    folder = write("vse", tmp_path / "encodings", rank=0, world_size=2)
    with pytest.raises(UserError, match=r"images-00001.safetensors is missing"):
        open_all(folder)


def test_encodings_of_another_data_set_are_refused(tmp_path):
    folder = write("vse", tmp_path / "encodings")
    with pytest.raises(UserError, match=r"images-00002.* \(it holds 3 rows;"):
        open_stored(folder, N_IMAGES - 1, N_TEXTS)


def test_a_piece_that_is_not_finite_is_refused_before_it_is_written(tmp_path):
    dataset = uneven_dataset(images=11)
    dataset.features[6] = np.inf
    with pytest.raises(UserError, match=r"\(train\), image 6: .* is not finite"):
        encode_to_disk(model_of("vse"), collator_of(dataset), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["images-00000.safetensors"]


def test_each_model_and_data_set_has_a_folder_of_its_own(tmp_path):
    folders = {
        encodings_folder(tmp_path, model_hash=model, data=data)
        for model in ("a" * 64, "b" * 64)
        for data in ("c" * 64 + " train", "c" * 64 + " dev")
    }
    assert len(folders) == 4
    assert {folder.parent for folder in folders} == {tmp_path}
    assert all(len(folder.name) == 12 for folder in folders)


def test_what_names_a_model_may_be_any_text(tmp_path):
    names = [("weights words", "data"), ("weights", "words data"), ("weights words data", "")]
    folders = {encodings_folder(tmp_path, model_hash=model, data=data) for model, data in names}
    assert len(folders) == len(names)


def test_rows_go_to_the_device_that_is_asked_for(tmp_path):
    folder = write("scan", tmp_path / "encodings")
    encoded = open_stored(folder, N_IMAGES, N_TEXTS, "meta")
    taken = encoded.texts[:2]
    assert (taken.vectors.device.type, taken.mask.device.type) == ("meta", "meta")
    assert encoded.images[torch.tensor([1])].vectors.device.type == "meta"


def test_rows_far_apart_are_read_each_by_itself_and_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding_files, "PIECE_SIZE", 2048)
    vectors = torch.randn(2500, 7)
    with atomic_folder(tmp_path / "rows", what="encodings") as folder:
        copy_rows(Encoding(vectors), torch.arange(2500), folder, "images")
    rows = open_rows(tmp_path / "rows", "images", 2500)
    some = torch.tensor([2499, 0, 700, 2048, 701])
    assert torch.equal(rows[some].vectors, vectors[some])
    piece = tmp_path / "rows" / "images-00000.safetensors"
    content = bytearray(piece.read_bytes())
    content[-1] ^= 1
    piece.write_bytes(content)
    with pytest.raises(UserError, match="images-00000"):
        open_rows(tmp_path / "rows", "images", 2500)[torch.tensor([0, 2047])]
