"""`aoq search` from a cold start, held against a script that loads CLIP and compares vectors.

The model has the size of a CLIP ViT-B/32 and random weights, which cost as much time as learned
ones, and the folder holds 100 small pictures: what is measured is the start, not the search. Each
command is a process of its own, after some that warm up the caches. Importing torch alone, which
is most of the time, and an `aoq search` that a server answers are measured beside it. Seconds of
the processor are of all threads, of which each process has one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from aoq.experiments.results import machine
from benchmarks.serve import serving
from tests.towers import write_processor, write_tokenizer

_PHOTOS = 100
_SENTENCE = "a dog in the snow"
_SCRIPT = """
import sys
import numpy as np, torch
from transformers import AutoTokenizer, CLIPModel
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = CLIPModel.from_pretrained(sys.argv[1])
with torch.no_grad():
    found = model.get_text_features(**tokenizer([sys.argv[2]], return_tensors="pt"))
vector = getattr(found, "pooler_output", found).numpy()
print(np.argsort(-(vector @ np.load(sys.argv[3]).T))[0, :10])
"""


def write_world(folder: Path) -> None:
    """Write photos, a model, and vectors for the script."""
    from transformers import CLIPConfig, CLIPModel

    random = np.random.default_rng(0)
    (folder / "photos").mkdir()
    for number in range(_PHOTOS):
        pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    write_tokenizer(folder / "clip", longest=77)
    write_processor(folder / "clip")
    ids = {"vocab_size": 49_408, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3}
    CLIPModel(
        CLIPConfig(text_config=ids, vision_config={"image_size": 32}, projection_dim=512)
    ).save_pretrained(folder / "clip")
    np.save(folder / "vectors.npy", random.standard_normal((_PHOTOS, 512)).astype(np.float32))


def measure(*command: str, repeats: int) -> dict[str, Any]:
    """Run a command some times; return its medians, of the clock and of the processor."""
    clock, processor = [], []
    for _ in range(repeats):
        before, started = _spent(), time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        clock.append(time.perf_counter() - started)
        processor.append(_spent() - before)
    return {"seconds": round(median(clock), 3), "processor_seconds": round(median(processor), 3)}


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """Let commands use a cache of their own, one thread, and the model that was written."""
    before = dict(os.environ)
    own = {"AOQ_CACHE": folder / "cache", "AOQ_MODEL": folder / "run", "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in own.items()})
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True)
class ColdStart:
    """Commands that find photos for one sentence."""

    name: str
    repeats: int = 7

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as place, _environment(Path(place)):
            folder = Path(place)
            write_world(folder)
            clip, photos = str(folder / "clip"), str(folder / "photos")
            self._aoq("import", clip, "--out", str(folder / "run"))
            search = ("-m", "aoq", "search", photos, _SENTENCE)
            script = ("-c", _SCRIPT, clip, _SENTENCE, str(folder / "vectors.npy"))
            self._aoq(*search[2:])  # makes the index and keeps the text tower
            figures = {
                "search": self._measure(*search),
                "script": self._measure(*script),
                "torch": self._measure("-c", "import torch"),
            }
            with serving(folder / "photos"):
                figures["beside_server"] = self._measure(*search)
        return {
            "name": self.name,
            "what": f"aoq search of {_PHOTOS} photos, a text tower of CLIP ViT-B/32",
            "baseline": "a script: transformers' CLIP, a saved array, a dot product",
            "sentence": "; ".join(_told(name, figures[name]) for name in figures),
            **figures,
            "load": round(os.getloadavg()[0], 1),
            "machine": machine(),
        }

    def _measure(self, *command: str) -> dict[str, Any]:
        measure(*command, repeats=1)
        return measure(*command, repeats=self.repeats)

    def _aoq(self, *words: str) -> None:
        subprocess.run([sys.executable, "-m", "aoq", *words], check=True, capture_output=True)


def _told(name: str, figures: dict[str, Any]) -> str:
    seconds, processor = figures["seconds"], figures["processor_seconds"]
    return f"{name.replace('_', ' ')} {seconds:.2f} s ({processor:.2f} s of the processor)"


COMPARISONS: Sequence[ColdStart] = (ColdStart(name="cold-start"),)
