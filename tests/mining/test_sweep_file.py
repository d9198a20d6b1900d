"""Mining that is killed and goes on: the same lists, bit by bit."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from aoq.config import MiningConfig
from aoq.distributed import ALONE
from aoq.mining import finish as finish_module
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.mine import mine_in_processes
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.sweep import FullSweep
from aoq.mining.sweep_file import SweepFile, sweep_file
from aoq.mining.toplists import TopLists
from aoq.runs.directory import RunDirectory
from aoq.scoring.inner_product import InnerProduct
from tests.kills import KilledError
from tests.mining.cases import NOWHERE, encoded_from, five_texts_an_image, matrix_of
from tests.mining.processes import run_in_threads, trained_run

CONFIG = MiningConfig(depth_texts=10, depth_images=5)
MATRIX, POSITIVES = matrix_of("by topic", 120, 600), five_texts_an_image(120, 600)
ARRAYS = ("i2t", "i2t_scores", "t2i", "t2i_scores")


def mine_and_save(path, *, config=CONFIG, provenance=NOWHERE, block_size=16, **options):
    return mine_in_processes(
        InnerProduct(),
        encoded_from(MATRIX),
        POSITIVES,
        config=config,
        provenance=provenance,
        captions=[f"caption {text}" for text in range(600)],
        block_size=block_size,
        saved=path,
        save_every=0.0,
        **options,
    )


@pytest.fixture
def always_saved(monkeypatch):
    """A save after every stripe."""
    monkeypatch.setattr(SweepFile, "is_due", lambda saved: True)


@pytest.fixture
def die_after(monkeypatch, always_saved):
    """Die right after so many saves."""
    save = SweepFile.save

    def set_up(count):
        left = count

        def dying(saved, sweep, **options):
            nonlocal left
            save(saved, sweep, **options)
            left -= 1
            if not left:
                raise KilledError

        monkeypatch.setattr(SweepFile, "save", dying)

    return set_up


@pytest.fixture
def starts(monkeypatch):
    """The stripe at which every sweep began."""
    seen = []
    run = FullSweep.run

    def spied(sweep, *, first_stripe=0, pause):
        seen.append(first_stripe)
        return run(sweep, first_stripe=first_stripe, pause=pause)

    monkeypatch.setattr(FullSweep, "run", spied)
    return seen


def assert_same(one, other):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one.lists, name), getattr(other.lists, name))
    assert (one.n_dropped, one.n_excused) == (other.n_dropped, other.n_excused)
    assert one.lists.provenance == other.lists.provenance


@pytest.mark.parametrize("saves", [1, 3, 8])
@pytest.mark.parametrize("rules", [{}, {"score_share": 0.9, "skip_first": 2}], ids=["", "rules"])
def test_mining_goes_on_after_the_last_saved_stripe_and_ends_the_same(
    tmp_path, die_after, starts, saves, rules
):
    config = replace(CONFIG, **rules)
    whole = mine_and_save(tmp_path / "whole", config=config)
    die_after(saves)
    with pytest.raises(KilledError):
        mine_and_save(tmp_path / "saved", config=config)
    assert_same(whole, mine_and_save(tmp_path / "saved", config=config))
    assert starts == [0, 0, saves]


def test_mining_that_ended_after_its_last_stripe_has_nothing_left_to_score(
    tmp_path, die_after, starts
):
    whole = mine_and_save(tmp_path / "whole")
    die_after(8)
    with pytest.raises(KilledError):
        mine_and_save(tmp_path / "saved")
    assert starts == [0, 0]
    assert safe_metadata(tmp_path / "saved")["stripes_done"] == "8"
    assert_same(whole, mine_and_save(tmp_path / "saved"))


def safe_metadata(path):
    with safe_open(path, framework="np") as file:
        return file.metadata()


def test_every_process_goes_on_by_itself(tmp_path, monkeypatch, always_saved, starts):
    """Both die when their sweeps are done, and start again after what each saved itself."""

    def mine(processes):
        return mine_and_save(tmp_path / f"{processes.rank}", processes=processes)

    whole, _ = run_in_threads(2, lambda each: mine_and_save(None, processes=each))
    with monkeypatch.context() as patch:
        patch.setattr(finish_module, "_complete", _die)
        with pytest.raises(KilledError):
            run_in_threads(2, mine)
    again, _ = run_in_threads(2, mine)
    assert_same(whole, again)
    assert sorted(starts) == [0, 0, 0, 0, 4, 4]


def _die(*_, **__):
    raise KilledError


OTHER_PLANS = {
    "model": {"provenance": Provenance(teacher="another", data="")},
    "data": {"provenance": Provenance(teacher="", data="another")},
    "depth": {"config": replace(CONFIG, depth_texts=11)},
    "precision": {"config": replace(CONFIG, precision="bfloat16")},
    "rule": {"config": replace(CONFIG, score_share=0.9)},
    "caption rule": {"config": replace(CONFIG, equal_captions=True)},
    "block": {"block_size": 17},
}


@pytest.mark.parametrize("what", OTHER_PLANS)
def test_what_was_saved_by_another_plan_is_ignored(tmp_path, die_after, starts, what):
    whole = mine_and_save(tmp_path / "whole", **OTHER_PLANS[what])
    die_after(3)
    with pytest.raises(KilledError):
        mine_and_save(tmp_path / "saved")
    assert_same(whole, mine_and_save(tmp_path / "saved", **OTHER_PLANS[what]))
    assert starts == [0, 0, 0]


def test_a_budget_that_leaves_the_blocks_as_they_are_goes_on(tmp_path, die_after, starts):
    die_after(3)
    with pytest.raises(KilledError):
        mine_and_save(tmp_path / "saved")
    mine_and_save(tmp_path / "saved", config=replace(CONFIG, memory="1GiB"))
    assert starts == [0, 3]


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def no_safetensors(path):
    path.write_text("nothing of the kind")


def without_an_array(path):
    metadata, arrays = safe_metadata(path), load_file(path)
    del arrays["t2i.floors"]
    save_file(arrays, path, metadata=metadata)


@pytest.mark.parametrize("damage", [cut_short, empty, no_safetensors], ids=lambda it: it.__name__)
def test_a_damaged_file_is_as_none(tmp_path, die_after, starts, damage):
    whole = mine_and_save(tmp_path / "whole")
    die_after(3)
    with pytest.raises(KilledError):
        mine_and_save(tmp_path / "saved")
    damage(tmp_path / "saved")
    assert_same(whole, mine_and_save(tmp_path / "saved"))
    assert starts == [0, 0, 0]


def test_a_file_that_lacks_an_array_is_as_none(tmp_path, die_after):
    whole = mine_and_save(tmp_path / "whole")
    die_after(3)
    with pytest.raises(KilledError):
        mine_and_save(tmp_path / "saved")
    without_an_array(tmp_path / "saved")
    assert_same(whole, mine_and_save(tmp_path / "saved"))


def test_a_file_with_changed_bytes_is_as_none(tmp_path, die_after):
    whole = mine_and_save(tmp_path / "whole")
    die_after(3)
    with pytest.raises(KilledError):
        mine_and_save(tmp_path / "saved")
    metadata, arrays = safe_metadata(tmp_path / "saved"), load_file(tmp_path / "saved")
    for name in ("i2t.keys", "t2i.keys"):
        arrays[name][arrays[name] > 0] ^= np.uint64(1)
    save_file(arrays, tmp_path / "saved", metadata=metadata)
    assert_same(whole, mine_and_save(tmp_path / "saved"))


def test_saving_takes_no_more_than_a_fiftieth_of_the_time(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    saved = SweepFile(tmp_path / "saved", "key", at_least=10.0)
    assert not saved.is_due()
    now += 10
    assert saved.is_due()

    def slow(_, path, **__):
        nonlocal now
        path.touch()
        now += 2

    monkeypatch.setattr("aoq.mining.sweep_file.save_file", slow)
    sweep = sweep_of_one_stripe()
    saved.save(sweep, stripes_done=1)
    now += 99
    assert not saved.is_due()
    now += 1
    assert saved.is_due()


def sweep_of_one_stripe():
    return FullSweep(
        ScoreMatrix.of(
            "i2t", scorer=InnerProduct(), encoded=encoded_from(MATRIX), positives=POSITIVES
        ),
        images=slice(0, 120),
        i2t=TopLists(120, depth=5, n_candidates=600),
        t2i=TopLists(600, depth=5, n_candidates=120),
        block_size=1000,
    )


# Killed for good


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np, torch
from aoq.config import MiningConfig
from aoq.mining.candidates import Provenance
from aoq.mining.mine import mine_in_processes
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives

class Slow(InnerProduct):
    def score_matrix(self, images, texts):
        time.sleep(0.002)
        return super().score_matrix(images, texts)

torch.set_num_threads(2)
generator = torch.Generator().manual_seed(0)
images, texts = (torch.randn(count, 16, generator=generator) for count in (400, 2000))
ids = np.arange(2000)
mined = mine_in_processes(
    Slow(),
    EncodedDataset(Encoding(images), Encoding(texts)),
    Positives.from_pairs(np.stack([ids // 5, ids], axis=1), n_images=400, n_texts=2000),
    config=MiningConfig(depth_texts=20, depth_images=8, score_share=0.99),
    provenance=Provenance(teacher="model", data="data"),
    block_size=48,
    saved=Path(sys.argv[1] + ".saved"),
    save_every=0.0,
)
mined.lists.save(Path(sys.argv[1]))
"""


def start(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def finish(process):
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    return said


def stripes_saved(path):
    try:
        return int(safe_metadata(path)["stripes_done"])
    except (FileNotFoundError, SafetensorError):
        return 0


def kill_when(process, condition, *, delay=0.0):
    """Kill a process as soon as `condition` holds, or a moment later; whether it still ran."""
    while process.poll() is None and not condition():
        time.sleep(0.001)
    time.sleep(delay)
    ran = process.poll() is None
    process.kill()
    process.communicate()
    return ran


def killed_and_continued(folder, *, kills, seed):
    """Kill the script at random moments, then let it end; the bytes of its lists."""
    moments = random.Random(seed)
    saved, targets, n_killed = folder / "killed.saved", [0], 0

    def got_further():
        return stripes_saved(saved) >= targets[-1]

    for _ in range(kills):
        targets.append(stripes_saved(saved) + moments.randint(1, 2))
        process = start(SCRIPT, folder / "killed")
        n_killed += kill_when(process, got_further, delay=moments.random() / 50)
    assert n_killed
    assert "mining continues after" in finish(start(SCRIPT, folder / "killed"))
    return (folder / "killed").read_bytes()


def test_lists_of_a_killed_process_are_those_of_one_that_was_not(tmp_path):
    finish(start(SCRIPT, tmp_path / "whole"))
    bytes_of_killed = killed_and_continued(tmp_path, kills=1, seed=0)
    assert bytes_of_killed == (tmp_path / "whole").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_lists_of_a_process_killed_again_and_again_are_those_of_one_that_was_not(tmp_path, seed):
    finish(start(SCRIPT, tmp_path / "whole"))
    bytes_of_killed = killed_and_continued(tmp_path, kills=4, seed=seed)
    assert bytes_of_killed == (tmp_path / "whole").read_bytes()


COMMAND = """
import functools, time
from aoq.cli import main
from aoq.scoring import encoding_files
from aoq.scoring.inner_product import InnerProduct
from aoq.runs import mine

score_matrix = InnerProduct.score_matrix

def slow(scorer, images, texts):
    time.sleep(0.003)
    return score_matrix(scorer, images, texts)

InnerProduct.score_matrix = slow
encoding_files.PIECE_SIZE = 16
mine.mine_in_processes = functools.partial(
    mine.mine_in_processes, block_size=12, save_every=0.0
)
main()
"""


@pytest.mark.slow
def test_the_command_goes_on_after_it_was_killed_while_it_encoded_and_while_it_ranked(tmp_path):
    """`aoq mine` as it is, but for small pieces and blocks and the pace."""
    run = trained_run(tmp_path, images=60)
    whole, lists = tmp_path / "whole", tmp_path / "lists"
    finish(start(COMMAND, "mine", run, "--out", whole))
    pieces = sorted(RunDirectory(run).encodings.rglob("*.safetensors"))
    for piece in pieces:
        piece.unlink()

    arguments = ("mine", run, "--out", lists)
    assert kill_when(start(COMMAND, *arguments), lambda: pieces[2].exists())
    kept = {piece: piece.stat().st_mtime_ns for piece in pieces if piece.exists()}
    assert 3 <= len(kept) < len(pieces)

    saved = sweep_file(lists, ALONE)
    assert kill_when(start(COMMAND, *arguments), lambda: stripes_saved(saved) >= 2)
    assert all(piece.stat().st_mtime_ns == written for piece, written in kept.items())
    assert not lists.exists()

    assert "mining continues after" in finish(start(COMMAND, *arguments))
    assert lists.read_bytes() == whole.read_bytes()
    assert CandidateLists.load(lists).i2t.shape == (60, 295)
    assert not list(tmp_path.glob(".lists*"))
