"""The interface of a matching model.

Mining and evaluation use the four methods of `MatchingModel`; training also uses what every
`torch.nn.Module` has. These are protocols: any two-tower module with these methods works, without
inheriting anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from aoq.types import Encoding, Texts

E_contra = TypeVar("E_contra", contravariant=True)


class Scorer(Protocol[E_contra]):
    """Scores encoded images against encoded texts; higher is closer."""

    def score_matrix(self, images: E_contra, texts: E_contra) -> Tensor:
        """Score every image against every text, in a tensor the caller may modify. (N, M)"""
        ...

    def score_pairs(self, images: E_contra, texts: E_contra) -> Tensor:
        """Score image b against text b: the diagonal of `score_matrix`. (B,)"""
        ...


class MatchingModel(Scorer[Encoding], Protocol):
    """A scorer with the encoders that feed it."""

    def encode_images(self, regions: Tensor) -> Encoding:
        """Encode region features (N, R, F)."""
        ...

    def encode_texts(self, texts: Texts) -> Encoding:
        """Encode padded word ids."""
        ...


class TrainableModel(MatchingModel, Protocol):
    """A matching model that is a `torch.nn.Module`, with the methods that training uses."""

    training: bool

    def train(self, mode: bool = True) -> Self: ...

    def eval(self) -> Self: ...

    def to(self, device: str | torch.device) -> Self: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...


@runtime_checkable
class SeparatesImageSets(Protocol):
    """A model that, in training, must process the pairs' images and their negatives separately."""

    def encode_image_sets(self, regions: Tensor, n_sets: int) -> list[Encoding]:
        """Encode sets of B images in sequence (n_sets B, R, F), each as if it were alone."""
        ...


@runtime_checkable
class FitsInputs(Protocol):
    """A model that looks at some training data before it learns, to scale what it reads."""

    def fit_inputs(self, regions: Tensor, texts: Texts) -> None: ...


@runtime_checkable
class FitsInClosedForm(Protocol):
    """A model that is computed from the training data, and learns nothing by steps."""

    def fit(self, pairs: Iterable[tuple[Tensor, Texts]], *, epoch: int) -> None:
        """Compute the weights from aligned images and texts.

        Epochs, counted from 0, may differ in how; the best on dev is kept.
        """
        ...


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """A model that learns something besides matching, as VSRN learns to write captions."""

    def auxiliary_loss(self, images: Encoding, texts: Texts) -> dict[str, Tensor]:
        """Return named terms, each a mean over the given pairs, weighted by their share."""
        ...


@runtime_checkable
class HasPretrained(Protocol):
    """A model with parts that were trained before, which may learn at a rate of their own."""

    def pretrained_parameters(self) -> Iterator[torch.nn.Parameter]:
        """Yield the parameters that were learned before, elsewhere."""
        ...
