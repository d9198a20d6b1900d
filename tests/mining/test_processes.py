"""Mining by several processes: the lists of one, whatever the shares."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.config import MiningConfig
from aoq.distributed import ALONE, Processes, join_processes
from aoq.mining import finish
from aoq.mining.candidates import CandidateLists
from aoq.mining.mine import mine_in_processes
from aoq.runs.directory import RunDirectory
from aoq.scoring.inner_product import InnerProduct
from tests.commands import aoq
from tests.mining.cases import (
    NOWHERE,
    assert_exact,
    encoded_from,
    five_texts_an_image,
    matrix_of,
    threads,
)
from tests.mining.processes import run_in_threads, trained_run
from tests.mining.rule_cases import LARGE, RULES, SMALL

ARRAYS = ("i2t", "i2t_scores", "t2i", "t2i_scores")


def mined_by(size, matrix, positives, *, block_size=None, captions=None, **settings):
    """What the first of so many processes mined; the others got nothing."""

    def work(processes):
        return mine_in_processes(
            InnerProduct(),
            encoded_from(matrix),
            positives,
            config=MiningConfig(**settings),
            provenance=NOWHERE,
            captions=captions,
            block_size=block_size,
            processes=processes,
        )

    first, *others = run_in_threads(size, work)
    assert others == [None] * (size - 1)
    return first


@given(st.integers(0, 1000), st.integers(1, 20))
def test_shares_are_even_and_leave_nothing_out(total, size):
    shares = [Processes(rank, size).share(total) for rank in range(size)]
    assert [at for share in shares for at in range(share.start, share.stop)] == list(range(total))
    sizes = [share.stop - share.start for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert [Processes(0, size).share(total, rank) for rank in range(size)] == shares


def test_without_torchrun_there_is_one_process_that_has_all():
    with join_processes() as processes:
        assert processes is ALONE
        processes.barrier()
    assert ALONE.is_first
    assert ALONE.share(7) == slice(0, 7)
    array = np.arange(3)
    assert ALONE.gather(array) == [array]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("kind", ["without order", "by topic", "falling"])
def test_processes_find_what_one_finds(size, kind):
    matrix, positives = matrix_of(kind, 203, 1001), five_texts_an_image(203, 1001)
    mined = mined_by(size, matrix, positives, depth_texts=12, depth_images=8, block_size=32)
    assert_exact(mined.lists, matrix, positives)


@pytest.mark.parametrize("size", [3, 7, 9])
def test_shares_smaller_than_a_list_and_empty_ones_are_put_together(size):
    matrix, positives = matrix_of("few scores", 7, 40), five_texts_an_image(7, 40)
    mined = mined_by(size, matrix, positives, depth_texts=20, depth_images=6)
    assert mined.lists.t2i.shape == (40, 6)
    assert_exact(mined.lists, matrix, positives)


def test_lists_are_gathered_in_parts_that_end_anywhere(monkeypatch):
    monkeypatch.setattr("aoq.mining.finish._GATHERED_AT_ONCE", 9)
    matrix, positives = matrix_of("without order", 50, 130), five_texts_an_image(50, 130)
    for size in (1, 3):
        mined = mined_by(size, matrix, positives, depth_texts=6, depth_images=4)
        assert_exact(mined.lists, matrix, positives)


def test_gathered_lists_are_finished_a_few_parts_at_a_time(monkeypatch):
    """What several processes found is not held all at once."""
    monkeypatch.setattr("aoq.mining.finish._GATHERED_AT_ONCE", 9)
    apply_rules, drop_near, ahead, done = finish._apply_rules, finish._drop_near, [], []

    def counted(swept):
        done.clear()
        for number, lists in enumerate(swept):
            ahead.append(number - len(done))
            yield lists

    def slowly(plan, anchors, keys):
        time.sleep(0.005)
        done.append(len(anchors))
        return drop_near(plan, anchors, keys)

    monkeypatch.setattr(finish, "_drop_near", slowly)
    monkeypatch.setattr(
        finish,
        "_apply_rules",
        lambda plan, swept, **rest: apply_rules(plan, counted(swept), **rest),
    )
    matrix, positives = matrix_of("without order", 50, 130), five_texts_an_image(50, 130)
    with threads(2):
        mined = mined_by(1, matrix, positives, depth_texts=6, depth_images=4)
    assert_exact(mined.lists, matrix, positives)
    assert len(ahead) == 6 + 15
    assert max(ahead) <= 2


@pytest.mark.parametrize("case", [LARGE, SMALL], ids=["large", "small"])
def test_processes_apply_the_rules_and_count_as_one_does(case):
    settings = {name: value for name, (_, value) in RULES.items()}
    alone = case.mined(depth_texts=8, depth_images=3, **settings)
    for size in (2, 4):
        mined = mined_by(
            size,
            case.matrix,
            case.positives,
            captions=case.captions,
            depth_texts=8,
            depth_images=3,
            **settings,
        )
        assert mined.n_dropped == alone.n_dropped
        assert mined.n_excused == alone.n_excused
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(mined.lists, name), getattr(alone.lists, name))


def torchrun(size, *arguments):
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(size), "-m", "aoq", *map(str, arguments)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_torchrun_mines_the_lists_of_one_process_and_leaves_nothing_behind(tmp_path):
    run = trained_run(tmp_path, images=40)
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    assert aoq("mine", run, "--out", one).returncode == 0
    for path in RunDirectory(run).encodings.rglob("*.safetensors"):
        path.unlink()  # both encode, too
    done = torchrun(2, "mine", run, "--out", two)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("mined ") == 1
    assert done.stderr.count("next: ") == 1
    first, second = CandidateLists.load(one), CandidateLists.load(two)
    assert second.provenance == first.provenance
    for name in ("i2t", "t2i"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        np.testing.assert_allclose(
            getattr(first, f"{name}_scores"), getattr(second, f"{name}_scores"), atol=1e-6, rtol=0
        )
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_mistake_ends_all_processes(tmp_path):
    done = torchrun(2, "mine", tmp_path / "missing")
    assert done.returncode != 0
    assert "there is no folder" in done.stderr
