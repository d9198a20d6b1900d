"""CLIP and its kind, fine-tuned with offline hard negatives on pictures and captions of your own.

python examples/clip.py captions.csv photos openai/clip-vit-base-patch32 runs/clip
aoq index runs/clip --model examples.clip:make_model --pictures photos
aoq search runs/clip --model examples.clip:make_model "a dog in the snow"

The weights are a CLIPModel or VisionTextDualEncoderModel of Hugging Face's transformers (5 or
later), by hub name or folder; both rounds start from them. With --from-config a tiny CLIP of
random weights is written to that folder first: it shows that everything runs, offline. Commands
that open the run build the model with `make_model`; its weights are those that $CLIP names.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import aoq
from aoq.progress import say


class DualEncoder(aoq.InnerProduct, nn.Module):
    """A dual encoder of transformers; its score is the cosine."""

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(weights)

    def encode_images(self, regions: Tensor) -> aoq.Encoding:  # pixels (B, 3, H, W)
        images = self.encoder.get_image_features(pixel_values=regions)
        return aoq.Encoding(normalize(images.pooler_output, dim=1))

    def encode_texts(self, texts: aoq.Texts) -> aoq.Encoding:
        words = self.encoder.get_text_features(texts.tokens, attention_mask=texts.mask.long())
        return aoq.Encoding(normalize(words.pooler_output, dim=1))

    def query_reader(self) -> aoq.QueryReader:
        return open_reader(self.encoder.name_or_path)


def make_model() -> DualEncoder:
    """Build the model for `--model examples.clip:make_model`."""
    return DualEncoder(os.environ.get("CLIP", "openai/clip-vit-base-patch32"))


def open_reader(weights: str) -> aoq.QueryReader:
    """Open what reads texts and pictures for the model, in training and in search."""
    tokenizer, processor = (
        kind.from_pretrained(weights) for kind in (AutoTokenizer, AutoImageProcessor)
    )
    return aoq.QueryReader(
        tokenizer=lambda text: tokenizer(text, truncation=True).input_ids,
        pad=tokenizer.pad_token_id,
        read_picture=lambda picture: processor(picture, return_tensors="np").pixel_values[0],
    )


def read_data(records: Sequence[aoq.Record], weights: str) -> aoq.TrainingData:
    """The splits of some pictures and captions, in pixels and tokens of the model."""
    reader = open_reader(weights)

    def read_split(split: str) -> aoq.Collator:
        images = [record for record in records if record.split == split]
        captions = [caption for record in images for caption in record.captions]
        owners = np.repeat(np.arange(len(images)), [len(record.captions) for record in images])
        dataset = aoq.PairDataset.of(
            reader.images([record.picture for record in images]),
            captions,
            np.stack([owners, np.arange(len(captions))], axis=1),
            split=split,
            image_ids=[record.image_id for record in images],
        )
        return reader.collator(dataset, device=aoq.default_device())

    has_test = any(record.split == "test" for record in records)
    return aoq.TrainingData(
        read_split("train"), read_split("dev"), read_split("test") if has_test else None
    )


def write_tiny_clip(folder: Path, captions: Sequence[str]) -> None:
    """A CLIP of a few thousand random weights, with a tokenizer that knows the captions' words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, PreTrainedTokenizerFast

    special = ["<pad>", "<start>", "<unk>", "<end>"]  # CLIP takes an <end> of id 2 for none
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(captions, trainers.WordLevelTrainer(special_tokens=special))
    words.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", model_max_length=32
    )
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3}
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 32, **ids}
    vision = {"image_size": 32, "patch_size": 8}
    config = CLIPConfig(
        text_config={**size, **text, "num_hidden_layers": 2},
        vision_config={**size, **vision, "num_hidden_layers": 2},
        projection_dim=32,
    )
    pixels = {"height": 32, "width": 32}
    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=pixels)
    for part in (CLIPModel(config), tokenizer, processor):
        part.save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a dual encoder with AOQ.")
    parser.add_argument("captions", type=Path, help="captions in any format of `aoq data build`")
    parser.add_argument("pictures", type=Path, help="folder of the pictures")
    parser.add_argument("weights", help="folder or hub name of a dual encoder")
    parser.add_argument("out", type=Path, help="folder of the run")
    parser.add_argument("--from-config", action="store_true", help="write a tiny model first")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--warmup-epochs", type=int, default=0, help="for weights that know little")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=5e-6)
    chosen = parser.parse_args(arguments)

    disable_progress_bar()  # of transformers
    records = aoq.read_records(chosen.captions, pictures=chosen.pictures)
    if chosen.from_config and not Path(chosen.weights).exists():
        captions = [caption for record in records for caption in record.captions]
        write_tiny_clip(Path(chosen.weights), captions)
    data = read_data(records, chosen.weights)
    fine_tuning = aoq.RoundConfig(
        epochs=chosen.epochs,
        warmup_epochs=chosen.warmup_epochs,
        batch_size=chosen.batch_size,
        learning_rate=chosen.learning_rate,
    )
    recipe = aoq.Recipe(
        round_one=fine_tuning,
        round_two=replace(fine_tuning, loss=aoq.LossConfig(name="adap_off_quin")),
    )

    build = partial(DualEncoder, chosen.weights)
    before = aoq.evaluate(build().to(aoq.default_device()), data.test or data.dev)
    after = aoq.run_recipe(chosen.out, recipe, data=data, make_model=build)
    say(f"{after['split']} rsum {before.rsum:.1f} before, {after['rsum']:.1f} after")
    tuned = aoq.load_own_model(chosen.out / "round-two", build)
    assert isinstance(tuned, DualEncoder)
    tuned.encoder.save_pretrained(chosen.out / "encoder")


if __name__ == "__main__":
    try:
        main()
    except aoq.UserError as error:
        say(f"error: {error}")
        raise SystemExit(2) from None
