"""The Vision Transformer, with the parameter names and initialisation every public checkpoint uses."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.LayerNorm):
    """Layer norm over the last dimension, in the type of its own weights: float32 even in a narrower network."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        # not every device has a kernel for narrow values beside float32 weights
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class SelfAttention(nn.Module):
    """Every token looks at all tokens, in `heads` ways at once; one product makes queries, keys and values."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * hidden))
        self.out_proj = nn.Linear(hidden, hidden)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        images, tokens, _ = x.shape
        projected = F.linear(x, self.in_proj_weight, self.in_proj_bias).view(images, tokens, 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.out_proj(seen.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class EncoderBlock(nn.Module):
    """Attention, then two layers token by token, each added to what came in."""

    def __init__(self, hidden: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.ln_1 = Norm(hidden)
        self.self_attention = SelfAttention(hidden, heads)
        self.ln_2 = Norm(hidden)
        # named by place: public checkpoints count a dropout in between, which this recipe has none of
        layers = {"0": nn.Linear(hidden, mlp), "1": nn.GELU(), "3": nn.Linear(mlp, hidden)}
        self.mlp = nn.Sequential(OrderedDict(layers))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.normal_(layer.bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class TransformerEncoder(nn.Module):
    """Adds to each token where it is, and passes all of them through the blocks."""

    def __init__(self, tokens: int, layers: int, heads: int, hidden: int, mlp: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, hidden).normal_(std=0.02))
        blocks = {f"encoder_layer_{i}": EncoderBlock(hidden, heads, mlp) for i in range(layers)}
        self.layers = nn.Sequential(OrderedDict(blocks))
        self.ln = Norm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(x + self.pos_embedding))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
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
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.conv_proj = nn.Conv2d(3, hidden, patch_px, stride=patch_px)
        self.encoder = TransformerEncoder(1 + (image_px // patch_px) ** 2, layers, heads, hidden, mlp)
        head = nn.Linear(hidden, classes)
        self.heads = nn.Sequential(OrderedDict(head=head))
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (3 * patch_px**2)))
        for zeros in (self.conv_proj.bias, head.weight, head.bias):
            nn.init.zeros_(zeros)  # type: ignore[arg-type]

    @staticmethod
    def own_name(name: str) -> str:
        """Ours for a parameter's name in torchvision's files, some of which were written before two were renamed."""
        return name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3.")

    def forward(self, images: Tensor) -> Tensor:
        return self.heads(self.encode(images)[:, 0])  # type: ignore[no-any-return]

    def encode(self, images: Tensor) -> Tensor:
        """What the encoder makes of the class token and, after it, of the patches row by row: (N, tokens, hidden)."""
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(len(images), -1, -1), patches), 1)
        return self.encoder(tokens)  # type: ignore[no-any-return]
