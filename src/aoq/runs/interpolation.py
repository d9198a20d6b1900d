"""Fine-tuning that does not forget: weights between a pretrained model and the trained one.

    weights(share) = (1 - share) start + share trained          WiSE-FT, Wortsman et al. 2022

Part of the way is often as good on the data of the training as all of it, and keeps more of what
the model knew. The share is chosen on dev; if a second data set is given, only among shares that
lose no more there than is allowed. Of low-rank adapters, whose change of the weights is a product,
only the second factor is scaled, so that the change itself is.

Only a model that can be judged without training has something to forget: one without a head or a
pooling that training began at random.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aoq.config import RoundName
from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset, splits_of
from aoq.distributed import alone_in, default_device
from aoq.errors import UserError
from aoq.evaluation.protocols import evaluate
from aoq.folders import written_folder
from aoq.models import build_model
from aoq.models.towers import Towers
from aoq.progress import EventLog
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import TrainedRun, load_run, save_weights
from aoq.runs.directory import RunDirectory
from aoq.runs.encodings import own_data
from aoq.runs.summary import RunSummary
from aoq.storage import append_json_line, locked, read_json, read_json_lines, write_json

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_DROP = 3.0  # of rsum: half a point of each of the six recalls
_KEPT = ".lora_A."  # of the factors of an adapter, the one that does not begin at zero


@dataclass(frozen=True)
class Judged:
    """The figures of one share on one split."""

    share: float
    data: str
    "Name of the data set."
    split: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Interpolation:
    """The chosen share, and the figures by which it was chosen and that tell what came of it."""

    share: float
    judged: tuple[Judged, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def interpolate_run(
    run: Path | str,
    out: Path | str,
    *,
    also: Path | str | None = None,
    max_drop: float = MAX_DROP,
    shares: Sequence[float] = SHARES,
    round: RoundName | None = None,  # noqa: A002
    force: bool = False,
) -> Interpolation:
    """Write a run whose weights lie between those that a run began with and those it learned.

    `also` is a second data set, on which rsum may fall by at most `max_drop`. Shares 0 and 1 are
    judged in any case: they are the model before and after. An interrupted call continues with the
    share that it was at.
    """
    source, out = best_round(run, round).path, Path(out)
    shares = _settle_shares(shares)
    trained = load_run(source, device=default_device())
    own, second = _Set.open(own_data(source)), None if also is None else _Set.open(Path(also))
    line = _Line(RunDirectory(out), trained, _start_of(trained, source))
    origin = {
        **RunDirectory(source).read_origin(),
        "weights": trained.model_hash,
        "interpolated": {
            "also": None if second is None else second.chooses.fingerprint,
            "max_drop": None if second is None else max_drop,
            "shares": list(shares),
        },
    }
    _prepare(out, source, origin, reads=[source, own.folder, *_folder_of(second)], force=force)
    with alone_in(out, doing="interpolated"):
        sets = [own] if second is None else [own, second]
        chosen = line.choose(shares, sets, max_drop=max_drop)
        ends = sorted({0.0, chosen.share, 1.0})
        tests = [each.tells for each in sets if each.tells is not None]
        told = tuple(line.judge(share, test) for test in tests for share in ends)
        found = Interpolation(chosen.share, chosen.judged + told)
        if not line.out.model.is_file():
            line.save(found, epoch=_epoch_of(source))
    return found


def _settle_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """Sort shares and add both ends; refuse those that lie outside."""
    for share in shares:
        if not 0 <= share <= 1:
            raise UserError(f"a share is {share}; it has to lie between 0 and 1.")
    return tuple(sorted({0.0, *map(float, shares), 1.0}))


@dataclass(frozen=True)
class _Set:
    """A data set: the split that chooses the share, and the one that tells what came of it."""

    folder: Path
    chooses: PairDataset
    tells: PairDataset | None

    @classmethod
    def open(cls, folder: Path) -> _Set:
        splits = splits_of(folder)
        chooses = next((split for split in ("dev", "test") if split in splits), splits[0])
        tells = open_dataset(folder, "test") if {"dev", "test"} <= set(splits) else None
        return cls(folder, open_dataset(folder, chooses), tells)


def _folder_of(data: _Set | None) -> list[Path]:
    return [] if data is None else [data.folder]


def _start_of(trained: TrainedRun, run: Path) -> dict[str, Tensor]:
    """Return the weights before training; refuse a model that cannot be judged with them."""
    model, inputs = trained.model, trained.inputs
    if not isinstance(model, Towers):
        raise UserError(
            f"{run} holds a model ({trained.recipe.model.name}) that began at random; only "
            "fine-tuned towers can be interpolated with what they were before."
        )
    pretrained = {id(parameter) for parameter in model.pretrained_parameters()}
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    fresh = [name for name, weight in learned.items() if id(weight) not in pretrained]
    if fresh or not learned:
        reason = f"{fresh[0]} began at random" if fresh else "nothing of it learned"
        raise UserError(
            f"{run} has no model before its training to go back to: {reason}; expected a dual "
            "encoder without heads whose towers learned (model.head none, model.learn top, lora or "
            "full)."
        )
    assert inputs.images is not None
    assert inputs.texts is not None
    start = build_model(
        replace(trained.recipe.model, image=inputs.images.backbone, text=inputs.texts.tower),
        feature_width=trained.feature_width or 0,
        vocabulary_size=len(trained.tokenizer),
        text_width=inputs.texts.load().width,
    )
    return start.state_dict()


def _prepare(
    out: Path, source: Path, origin: dict[str, Any], *, reads: Sequence[Path], force: bool
) -> None:
    """Begin the new run, or check that it was begun with the same settings."""
    begun = RunDirectory(out)
    if begun.origin.is_file():
        with locked(out, doing="interpolated"):
            pass
    if begun.origin.is_file() and not force:
        if read_json(begun.origin) != origin:
            raise UserError(
                f"{out} is another run, or was interpolated from another one or with other "
                "settings; choose another folder, or add --force to start anew."
            )
        return
    before = RunDirectory(source)
    with written_folder(out, what="run", force=force, sources=reads) as temporary:
        run = RunDirectory(temporary)
        shutil.copyfile(before.config, run.config)
        shutil.copyfile(before.inputs, run.inputs)
        if before.pretrained.is_dir():
            shutil.copytree(before.pretrained, run.pretrained)
        write_json(run.origin, origin)


def _epoch_of(source: Path) -> int:
    """Return the epoch that the trained weights are of; 0 if it is not on record."""
    dev = RunSummary.read(source).dev
    return 0 if dev is None else dev.epoch


@dataclass(frozen=True)
class _Line:
    """The line from a model before its training to the trained one, and what is on it."""

    out: RunDirectory
    "Where figures are kept as they come."
    trained: TrainedRun
    start: Mapping[str, Tensor]
    end: Mapping[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        end = {name: value.clone() for name, value in self.trained.model.state_dict().items()}
        object.__setattr__(self, "end", end)

    def go_to(self, share: float) -> None:
        """Give the model the weights at a share of the training."""
        self.trained.model.load_state_dict(
            {
                name: end if _KEPT in name else torch.lerp(self.start[name].to(end), end, share)
                for name, end in self.end.items()
            }
        )

    def judge(self, share: float, dataset: PairDataset) -> Judged:
        """Judge a share on a split, unless its figures are kept."""
        about: dict[str, Any] = {
            "share": share,
            "fingerprint": dataset.fingerprint,
            "split": dataset.split,
        }
        lines = (line for line in read_json_lines(self.out.interpolation))
        kept = next((line for line in lines if about.items() <= line.items()), None)
        if kept is None:
            self.go_to(share)
            collator = self.trained.collator(dataset, device=default_device())
            description = f"judge share {share:.2f} on {dataset.name}, {dataset.split}"
            metrics = evaluate(self.trained.model, collator, description=description)
            kept = {**about, "metrics": metrics.as_dict()}
            append_json_line(self.out.interpolation, kept)
        return Judged(share, dataset.name, dataset.split, kept["metrics"])

    def choose(
        self, shares: Sequence[float], sets: Sequence[_Set], *, max_drop: float
    ) -> Interpolation:
        """Choose the share with the highest rsum on the first set, the smallest of equal ones.

        On the others rsum may be lower than before training by at most `max_drop`.
        """
        judged = {each.folder: [self.judge(at, each.chooses) for at in shares] for each in sets}
        rsums = [[one.metrics["rsum"] for one in row] for row in judged.values()]
        allowed = [
            place
            for place in range(len(shares))
            if all(row[place] >= row[0] - max_drop for row in rsums[1:])
        ]
        best = max(allowed, key=lambda place: rsums[0][place])
        return Interpolation(shares[best], tuple(one for row in judged.values() for one in row))

    def save(self, found: Interpolation, *, epoch: int) -> None:
        """Write the weights of the chosen share; they come last, and make the run a trained one."""
        self.go_to(found.share)
        dev = next(one for one in found.judged if one.share == found.share)
        log = EventLog(self.out.events)
        log.write("interpolated", share=found.share)
        log.write("validation", epoch=epoch, best=True, **dev.metrics)
        width = self.trained.feature_width
        save_weights(self.out.model, self.trained.model, feature_width=width)
