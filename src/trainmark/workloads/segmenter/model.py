"""Segmenter: a Vision Transformer and a mask transformer with one learnt token per class."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.workloads.vision_transformer import (
    EncoderBlock,
    Norm,
    PatchEncoder,
    SelfAttention,
    interpolate_positions,
    linear_drop_paths,
    torchvision_name,
)

DECODER_EPS = 1e-5
"""Epsilon of the decoder's norms; the encoder's is a tenth, as in the pretrained classifiers."""


class MaskDecoder(nn.Module):
    """Patches and class tokens attend to each other; a patch's scores are its similarities to the class tokens."""

    def __init__(self, *, classes: int, layers: int, heads: int, hidden: int, mlp: int, drop_path: float) -> None:
        super().__init__()
        self.classes = classes
        self.cls_emb = nn.Parameter(torch.empty(1, classes, hidden))
        self.proj_patch = nn.Parameter(torch.empty(hidden, hidden))
        self.proj_classes = nn.Parameter(torch.empty(hidden, hidden))
        self.blocks = nn.ModuleList(
            EncoderBlock(hidden, heads, mlp, drop_path=chance, eps=DECODER_EPS)
            for chance in linear_drop_paths(drop_path, layers)
        )
        self.proj_dec = nn.Linear(hidden, hidden)
        self.decoder_norm = Norm(hidden, DECODER_EPS)
        self.mask_norm = Norm(classes, DECODER_EPS)
        for drawn in (self.cls_emb, self.proj_patch, self.proj_classes):
            nn.init.trunc_normal_(drawn, std=0.02)
        self.apply(_initialise)

    def forward(self, patches: Tensor, columns: int) -> Tensor:
        """Scores (N, classes, rows, columns) of patches (N, rows x columns, hidden)."""
        tokens = torch.cat((self.proj_dec(patches), self.cls_emb.expand(len(patches), -1, -1)), 1)
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.decoder_norm(tokens)
        of_patches = F.normalize(tokens[:, : -self.classes] @ self.proj_patch, dim=-1)
        of_classes = F.normalize(tokens[:, -self.classes :] @ self.proj_classes, dim=-1)
        masks = self.mask_norm(of_patches @ of_classes.transpose(1, 2))
        return masks.transpose(1, 2).unflatten(2, (-1, columns))  # type: ignore[no-any-return]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, SelfAttention):
        nn.init.trunc_normal_(module.in_proj_weight, std=0.02)


class Segmenter(PatchEncoder):
    """Images (N, 3, height, width) to class scores of every pixel (N, classes, height, width), in float32."""

    def __init__(
        self,
        *,
        image_px: int = 512,
        patch_px: int = 16,
        layers: int = 12,
        decoder_layers: int = 2,
        heads: int = 12,
        hidden: int = 768,
        mlp: int = 3072,
        classes: int = 150,
        drop_path: float = 0.1,
    ) -> None:
        super().__init__(
            image_px=image_px,
            patch_px=patch_px,
            layers=layers,
            heads=heads,
            hidden=hidden,
            mlp=mlp,
            drop_path=drop_path,
        )
        self.decoder = MaskDecoder(
            classes=classes, layers=decoder_layers, heads=heads, hidden=hidden, mlp=mlp, drop_path=drop_path
        )
        self.draw_patches()

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        # padded below and on the right to whole patches, and cropped again
        padded = F.pad(images, (0, -width % self.patch_px, 0, -height % self.patch_px))
        scores = self.decoder(self.encode(padded)[:, 1:], padded.shape[3] // self.patch_px).float()
        return upsample(scores, (padded.shape[2], padded.shape[3]))[:, :, :height, :width]

    @staticmethod
    def own_name(name: str) -> str:
        """Our name of a parameter in the original's files, or in a classifier's."""
        for public, ours in _PUBLIC_NAMES:
            name = re.sub(public, ours, name)
        return torchvision_name(name)

    def begin_with(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Adapts the weights of a segmenter or classifier: interpolates positions of another grid, drops a classifier's
        head, and without a decoder keeps the initial one."""
        found = {name: tensor for name, tensor in weights.items() if not name.startswith(_HEADS)}
        places, wanted = found.get(_PLACES), self.encoder.pos_embedding
        if places is not None and places.ndim == 3 and places.shape[1] != wanted.shape[1] and _is_square(places):
            found[_PLACES] = interpolate_positions(places, self.grid, self.grid)
        if not any(name.startswith("decoder.") for name in found):
            found |= {name: tensor for name, tensor in self.state_dict().items() if name.startswith("decoder.")}
        return found


def upsample(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Patch scores upsampled to pixels."""
    return scores if scores.shape[2:] == size else F.interpolate(scores, size, mode="bilinear", align_corners=False)


_PLACES = "encoder.pos_embedding"
_HEADS = ("heads.", "head.", "encoder.head.")
_PUBLIC_NAMES = (
    (r"^(encoder\.)?cls_token$", "class_token"),
    (r"^(encoder\.)?pos_embed$", _PLACES),
    (r"^(encoder\.)?patch_embed\.proj\.", "conv_proj."),
    (r"^(encoder\.)?norm\.", "encoder.ln."),
    (r"^(encoder\.)?blocks\.", "encoder.layers.encoder_layer_"),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attn\.qkv\.", ".self_attention.in_proj_"),
    (r"\.attn\.proj\.", ".self_attention.out_proj."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
)
"""Names in the original's files and in ImageNet weights, and ours."""


def _is_square(places: Tensor) -> bool:
    patches = places.shape[1] - 1
    return math.isqrt(patches) ** 2 == patches
