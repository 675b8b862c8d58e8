"""The ResNet v1.5 bottleneck network, with the parameter names and initialisation every public checkpoint uses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCKS = (3, 4, 6, 3)
"""Bottlenecks in each of the four stages of ResNet-50."""

EXPANSION = 4
"""A bottleneck's output is this many times wider than its 3x3 convolution."""


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, added to the shortcut; the 3x3 carries the stride, which is what v1.5 means."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = planes * EXPANSION
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += shortcut
        return self.relu(x)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Images (N, 3, H, W) to class scores (N, classes); any H and W from 32 up. `width` below 64 gives fewer channels.

    With `zero_init_residual` every bottleneck starts as its shortcut, so that a run of a few hundred steps learns; the
    reference network starts without.
    """

    def __init__(self, *, width: int = 64, classes: int = 1000, zero_init_residual: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(width, width, BLOCKS[0], stride=1)
        self.layer2 = _stage(width * 4, width * 2, BLOCKS[1], stride=2)
        self.layer3 = _stage(width * 8, width * 4, BLOCKS[2], stride=2)
        self.layer4 = _stage(width * 16, width * 8, BLOCKS[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width * 32, classes)
        # batch norm (weight 1, bias 0) and the linear layer keep torch's defaults
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))  # type: ignore[no-any-return]


def _stage(inputs: int, planes: int, blocks: int, *, stride: int) -> nn.Sequential:
    """One stage: the first bottleneck changes size and width, the others keep them."""
    first = Bottleneck(inputs, planes, stride)
    others = (Bottleneck(planes * EXPANSION, planes, 1) for _ in range(blocks - 1))
    return nn.Sequential(first, *others)
