"""How the number of threads is chosen, with a clock that only the work moves."""

import numpy as np
import pytest
import torch

from aoq import threads
from aoq.scoring.encoded import encode_dataset
from aoq.threads import Pace, ThreadChoice, choose_threads, is_set_by_user, using_threads
from tests.conftest import uneven_dataset
from tests.scoring.cases import collator_of, small_model, vocabulary_of


class Work:
    """Takes as long as `seconds` says for the number of threads it is done with."""

    def __init__(self, seconds):
        self.seconds, self.now, self.done = seconds, 0.0, []

    def __call__(self):
        self.done.append(torch.get_num_threads())
        self.now += self.seconds[self.done[-1]]

    def clock(self):
        return self.now


@pytest.fixture
def eight_cores(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_numbers_of_torch", lambda: {8})
    with using_threads(8):
        yield


@pytest.mark.parametrize("fastest", [1, 4, 8])
@pytest.mark.usefixtures("eight_cores")
def test_the_fastest_number_wins(fastest):
    work = Work({1: 3.0, 4: 3.0, 8: 3.0, fastest: 2.0})
    choice = choose_threads(work, units=10_000, clock=work.clock)
    assert choice.threads == fastest
    assert choice.seconds == work.seconds
    assert torch.get_num_threads() == 8


@pytest.mark.usefixtures("eight_cores")
def test_measuring_ends_where_it_would_cost_more_than_its_share():
    quick, slow = Work({1: 1.0, 4: 1.0, 8: 1.0}), Work({1: 1.0, 4: 50.0, 8: 50.0})
    choose_threads(quick, units=10_000, clock=quick.clock)
    choose_threads(slow, units=1_000, clock=slow.clock)
    assert quick.done == [1, *[1, 4, 8] * 5]
    assert slow.done == [1, 1, 4, 8]


@pytest.mark.usefixtures("eight_cores")
def test_short_work_is_not_measured():
    work = Work({})
    assert choose_threads(work, units=99, clock=work.clock).threads == 8
    assert work.done == []


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
@pytest.mark.usefixtures("eight_cores")
def test_a_number_in_the_environment_wins(monkeypatch, name):
    assert not is_set_by_user()
    monkeypatch.setenv(name, "8")
    work = Work({})
    assert choose_threads(work, units=10_000, clock=work.clock).threads == 8
    assert work.done == []


@pytest.mark.usefixtures("eight_cores")
def test_a_call_of_set_num_threads_wins():
    work = Work({})
    with using_threads(3):
        assert choose_threads(work, units=10_000, clock=work.clock).threads == 3
    assert work.done == []


def test_a_pace_slows_where_units_take_twice_as_long_for_a_while():
    pace = Pace()
    assert not any(pace.slows(1.0) for _ in range(100))
    assert not any(pace.slows(9.0) for _ in range(5)), "a hiccup"
    assert not any(pace.slows(1.9) for _ in range(100))
    assert [pace.slows(2.1) for _ in range(20)][-1]


def test_another_number_has_to_be_clearly_faster():
    assert ThreadChoice(1, {1: 1.0, 2: 1.2}).beats(2)
    assert not ThreadChoice(1, {1: 1.0, 2: 1.05}).beats(2)
    assert not ThreadChoice(1, {1: 1.0, 2: 1.2}).beats(1)
    assert not ThreadChoice(2).beats(1), "not measured"


@pytest.mark.parametrize("name", ["vsrn", "bfan", "scan", "vse"])
def test_encodings_do_not_depend_on_the_number_of_threads(monkeypatch, name):
    """Each batch is computed by one thread, whose sums have one order."""
    dataset = uneven_dataset(images=11)
    model, collator = small_model(name, vocabulary=vocabulary_of(dataset)), collator_of(dataset)
    real, seen, encoded = model.encode_texts, set(), []

    def encode_texts(texts):
        seen.add((torch.get_num_threads(), torch.is_grad_enabled()))
        return real(texts)

    monkeypatch.setattr(model, "encode_texts", encode_texts)
    for number in (1, 2, 3):
        with using_threads(number):
            encoded.append(encode_dataset(model, collator, batch_size=3))
    assert seen == {(1, False)}
    for other in encoded[1:]:
        for side in ("images", "texts"):
            vectors = [getattr(part, side).vectors.numpy() for part in (encoded[0], other)]
            np.testing.assert_array_equal(*vectors)
