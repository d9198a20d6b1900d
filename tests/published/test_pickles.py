"""Checkpoints of the published programs that are refused: nothing of them is run or built."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import tracemalloc
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from aoq.errors import UserError
from aoq.published.pickles import read_checkpoint
from tests.published.cases import FORMATS, content, write


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "model_best.pth.tar"


# Files that want to run something


class Payload:
    """Pickled, it asks whoever loads it to call a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("form", ["zip", "legacy"])
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.mkdir, "mkdir"), (Path, "Path"), (exec, "exec")],
)
def test_a_file_that_asks_for_more_is_refused_by_name_and_nothing_is_run(
    tmp_path, file, form, function, name
):
    trace = tmp_path / "trace"
    argument = f"open({str(trace)!r}, 'w')" if function is exec else str(trace)
    value = content()
    value["opt"] = Payload(function, argument)
    write(file, value, form=form)
    with pytest.raises(UserError, match="nothing in it was run") as caught:
        read_checkpoint(file)
    assert f"{name} when it is loaded" in str(caught.value)
    assert "weights_only" not in str(caught.value)
    assert not trace.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_bare_pickle_with_a_payload_is_refused_in_every_protocol(tmp_path, file, protocol):
    trace = tmp_path / "trace"
    file.write_bytes(pickle.dumps(Payload(os.mkdir, str(trace)), protocol))
    with pytest.raises(UserError, match="nothing in it was run"):
        read_checkpoint(file)
    assert not trace.exists()


def test_the_payloads_of_these_tests_would_work(tmp_path):
    trace = tmp_path / "trace"
    pickle.loads(pickle.dumps(Payload(os.mkdir, str(trace))))
    assert trace.exists()


# Files that want all the memory


@pytest.fixture
def little_memory():
    """Fails where Python takes more than a few megabytes at once."""
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8_000_000


def packed_again(path, *, compression=zipfile.ZIP_STORED, copies=1):
    """The same entries, compressed or listed several times."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
        archive.filelist *= copies


def test_a_checkpoint_packed_by_zip_without_compression_is_read(file):
    packed_again(write(file, content(), form="zip"))
    assert read_checkpoint(file).epoch == 12


def test_a_compressed_checkpoint_is_refused(file):
    value = content()
    value["model"][0]["fc.weight"] = torch.zeros(3_000, 1_000)
    packed_again(write(file, value, form="zip"), compression=zipfile.ZIP_DEFLATED)
    assert file.stat().st_size < 100_000
    with pytest.raises(UserError, match=r"data\.pkl is compressed"):
        read_checkpoint(file)


def test_entries_that_overlap_are_refused(file):
    packed_again(write(file, content(), form="zip"), copies=20)
    with pytest.raises(UserError, match="so they overlap"):
        read_checkpoint(file)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("form", ["zip", "legacy"])
@pytest.mark.parametrize("place", ["opt", "epoch", "more"])
def test_a_call_for_a_huge_bytearray_is_refused_before_it_is_built(file, form, place):
    write(file, content() | {place: Payload(bytearray, 2**25)}, form=form)
    with pytest.raises(UserError, match="bytearray when it is loaded"):
        read_checkpoint(file)


@pytest.mark.parametrize("number", range(5))
def test_each_pickle_of_an_old_file_is_looked_through(file, number):
    file.write_bytes(pickle.dumps(1, 2) * number + pickle.dumps(Payload(bytearray, 2**25), 2))
    with pytest.raises(UserError, match="bytearray when it is loaded"):
        read_checkpoint(file)


def encoded_again(times, codec):
    """Bytes as pickle writes them, encoded by a codec again and again."""
    steps = [b"c_codecs\nencode\nq\x00"]
    steps += [b"h\x00"] * (times - 1)
    name = b"X" + len(codec).to_bytes(4, "little") + codec.encode()
    return b"\x80\x02" + b"".join(steps) + b"X\x04\x00\x00\x00text" + (name + b"\x86R") * times


@pytest.mark.parametrize(("times", "codec"), [(20, "hex"), (1, "utf-16"), (2, "latin1")])
def test_bytes_are_made_of_text_only_once_and_as_they_are(file, times, codec):
    file.write_bytes(encoded_again(times, codec) + b".")
    with pytest.raises(UserError, match=r"_codecs\.encode when it is loaded"):
        read_checkpoint(file)


def test_short_byte_strings_are_read_and_long_ones_refused(file):
    short, long = Namespace(note=b"\xff" * 8), Namespace(note=b"\xff" * 80)
    assert read_checkpoint(write(file, content() | {"opt": short})).epoch == 12
    with pytest.raises(UserError, match=r"_codecs\.encode when it is loaded"):
        read_checkpoint(write(file, content() | {"opt": long}))


def test_weights_that_are_not_in_the_file_are_refused(file):
    """An old file without its numbers, whose list of them is empty."""
    value = content()
    value["model"][0]["fc.weight"] = torch.zeros(300, 100)
    whole = io.BytesIO(write(file, value).read_bytes())
    for _ in range(4):
        list(pickletools.genops(whole))
    file.write_bytes(whole.getvalue()[: whole.tell()] + pickle.dumps([], 2))
    with pytest.raises(UserError, match=r"weights take 12\d,\d+ bytes"):
        read_checkpoint(file)


def test_an_array_of_objects_is_not_a_number(file):
    value = content() | {"best_rsum": np.array([1, None], dtype=object)}
    with pytest.raises(UserError, match=r"_reconstruct when it is loaded"):
        read_checkpoint(write(file, value))


def test_reading_leaves_torch_as_strict_as_it_was(file):
    before = set(torch.serialization.get_safe_globals())  # in no order
    read_checkpoint(write(file, content()))
    file.write_bytes(b"no checkpoint")
    with pytest.raises(UserError):
        read_checkpoint(file)
    assert set(torch.serialization.get_safe_globals()) == before


# Files that are damaged or something else


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(file, form, share):
    data = write(file, content(), form=form).read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UserError, match="truncated or damaged"):
        read_checkpoint(file)


@pytest.mark.parametrize("data", [b"hello", b'{"word2idx": {}}', b"\x89PNG\r\n", b"\x80\x04N."])
def test_what_is_not_a_checkpoint_is_refused(file, data):
    file.write_bytes(data)
    with pytest.raises(UserError, match="not a checkpoint that can be read safely"):
        read_checkpoint(file)


def test_a_missing_file_and_a_folder_are_refused(file, tmp_path):
    for path in (file, tmp_path):
        with pytest.raises(UserError, match="is not a file; expected a checkpoint"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([1, 2], "is not a checkpoint of a published program: it has no keys"),
        ({"state_dict": {}}, "it has keys state_dict; expected model, opt"),
        ({"model": torch.ones(2)}, "model is of the type Tensor"),
        ({"model": [{}]}, "model is a list of dict; expected a list of two or three"),
        ({"model": [{"a": 1}, {}]}, "model is a list of dict, dict"),
        ({"model": [{"a": torch.ones(1).expand(9)}, {}]}, "model is a list of dict, dict"),
        ({"model": [{"a": torch.eye(2).to_sparse()}, {}]}, "model is a list of dict, dict"),
    ],
)
def test_another_structure_is_refused(file, value, sentence):
    with pytest.raises(UserError) as caught:
        read_checkpoint(write(file, value))
    assert sentence in str(caught.value)
