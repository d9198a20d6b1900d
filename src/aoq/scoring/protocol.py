"""What a matching model is to the rest of the library.

Mining and evaluation know a model by the four methods of `MatchingModel`; training also uses what
every `torch.nn.Module` has. These are protocols: a user's own two-tower module takes part by
having the methods, without inheriting anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from aoq.types import Encoding, Texts

E_contra = TypeVar("E_contra", contravariant=True)


class Scorer(Protocol[E_contra]):
    """Scores encoded images against encoded texts; higher is closer."""

    def score_matrix(self, images: E_contra, texts: E_contra) -> Tensor:
        """Every image against every text, in a tensor that the caller may write to. (N, M)"""
        ...

    def score_pairs(self, images: E_contra, texts: E_contra) -> Tensor:
        """Image b against text b: the diagonal of `score_matrix`. (B,)"""
        ...


class MatchingModel(Scorer[Encoding], Protocol):
    """A scorer with the encoders that feed it."""

    def encode_images(self, regions: Tensor) -> Encoding:
        """Region features (N, R, F) to encodings."""
        ...

    def encode_texts(self, texts: Texts) -> Encoding:
        """Padded word ids to encodings."""
        ...


class TrainableModel(MatchingModel, Protocol):
    """A matching model that is a `torch.nn.Module`: what training uses of one."""

    training: bool

    def train(self, mode: bool = True) -> Self: ...

    def eval(self) -> Self: ...

    def to(self, device: str | torch.device) -> Self: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...


@runtime_checkable
class SeparatesImageSets(Protocol):
    """A model that, in training, must see the pairs' images and their negatives' as sets apart."""

    def encode_image_sets(self, regions: Tensor, n_sets: int) -> list[Encoding]:
        """Sets of B images one after the other (n_sets B, R, F), each encoded as if alone."""
        ...


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """A model that learns something beside matching, as VSRN learns to write captions."""

    def auxiliary_loss(self, images: Encoding, texts: Texts) -> dict[str, Tensor]:
        """Named terms, each a mean over the pairs given, which their share of the step weighs."""
        ...
