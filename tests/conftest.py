"""Shared by all tests: one thread a process, a cache of their own, and small data sets."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from aoq.data.dataset import PairDataset
from aoq.types import Positives

# Several test processes share the cores; more threads than cores make each wait for the other.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# Beside other programs an example may take longer than hypothesis allows.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
# A shell's background jobs ignore Ctrl-C, and so would the commands that tests send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Folders whose tests share trained runs: the tests of each go to one of pytest-xdist's processes.
SHARING = {"experiments": "grid", "reproduction": "grid", "retrieval": "search", "web": "web"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes milliseconds first; programs that are killed, servers and browsers last.

    A file, or a folder that shares fixtures, is not divided, so that no fixture is made twice.
    """

    def turn(item: pytest.Item) -> int:
        if {"end_to_end", "web"} & set(item.path.parts):
            return 3 if "end_to_end" in item.path.parts else 2
        return int(hasattr(getattr(item, "module", None), "die"))  # kills programs

    items.sort(key=turn)
    for item in items:
        folder = item.path.relative_to(item.config.rootpath).parts[1]
        item.add_marker(pytest.mark.xdist_group(SHARING.get(folder, str(item.path))))


@pytest.fixture(scope="session", autouse=True)
def feature_cache(tmp_path_factory):
    """Extracted features never leave the test run, but are shared within it."""
    previous = os.environ.get("AOQ_CACHE")
    os.environ["AOQ_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")
    yield
    if previous is None:
        del os.environ["AOQ_CACHE"]
    else:
        os.environ["AOQ_CACHE"] = previous


WORDS = ("red", "blue", "green", "ball", "cup", "tree", "left", "right", "above", "small", "two")


def write_precomp(folder: Path, *, images: int = 12, seed: int = 0) -> Path:
    """A precomp folder of random features with captions of a few words, in all three splits."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for split, count in (("train", images), ("dev", images // 2), ("test", images // 2)):
        features = random.normal(size=(count, 4, 6)).astype(np.float32)
        np.save(folder / f"{split}_ims.npy", features)
        lines = [
            " ".join(random.choice(WORDS, size=random.integers(3, 8))) for _ in range(5 * count)
        ]
        (folder / f"{split}_caps.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def precomp(tmp_path) -> Path:
    return write_precomp(tmp_path / "precomp")


def uneven_dataset(*, images: int = 6, seed: int = 0) -> PairDataset:
    """One to four captions an image."""
    random = np.random.default_rng(seed)
    owners = np.repeat(np.arange(images), random.integers(1, 5, size=images))
    captions = [" ".join(random.choice(WORDS, size=random.integers(2, 7))) for _ in owners]
    return PairDataset(
        name="uneven",
        split="train",
        features=random.normal(size=(images, 4, 6)).astype(np.float32),
        image_ids=tuple(f"image-{i}" for i in range(images)),
        captions=tuple(captions),
        caption_ids=tuple(f"caption-{i}" for i in range(len(owners))),
        positives=Positives.from_pairs(
            np.stack([owners, np.arange(len(owners))], axis=1),
            n_images=images,
            n_texts=len(owners),
        ),
        pictures=(None,) * images,
    )


@pytest.fixture(scope="session")
def towers(tmp_path_factory):
    """Tiny pretrained models, in folders as transformers saves them."""
    pytest.importorskip("transformers")
    from tests.towers import TinyModels

    return TinyModels.write(tmp_path_factory.mktemp("towers"))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub of Hugging Face on this machine, instead of the real one."""
    pytest.importorskip("huggingface_hub")
    from tests.hub_server import only_hub

    with only_hub(tmp_path / "hub-cache", monkeypatch) as hub:
        yield hub
