"""The Vision Transformer as a classifier, by its class token."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from trainmark.workloads.vision_transformer import PatchEncoder, torchvision_name


class VisionTransformer(PatchEncoder):
    """Images (N, 3, image_px, image_px) to class scores (N, classes); the default sizes are those of ViT-B/16."""

    def __init__(
        self,
        *,
        image_px: int = 224,
        patch_px: int = 16,
        layers: int = 12,
        heads: int = 12,
        hidden: int = 768,
        mlp: int = 3072,
        classes: int = 1000,
    ) -> None:
        super().__init__(image_px=image_px, patch_px=patch_px, layers=layers, heads=heads, hidden=hidden, mlp=mlp)
        head = nn.Linear(hidden, classes)
        self.heads = nn.Sequential(OrderedDict(head=head))
        self.draw_patches()
        for zeros in (head.weight, head.bias):
            nn.init.zeros_(zeros)

    own_name = staticmethod(torchvision_name)

    def forward(self, images: Tensor) -> Tensor:
        return self.heads(self.encode(images)[:, 0])  # type: ignore[no-any-return]
