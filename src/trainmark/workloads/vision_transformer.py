"""The blocks of a Vision Transformer, with the parameter names and initialisation every public checkpoint uses."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.record.errors import UsageError


def check_sizes(image_px: int, patch_px: int, hidden: int, heads: int) -> None:
    """UsageError if they do not divide."""
    if image_px % patch_px:
        raise UsageError(
            f"images of {image_px} pixels do not divide into patches of {patch_px}; "
            "change image_px or patch_px so that they do"
        )
    if hidden % heads:
        raise UsageError(
            f"a hidden size of {hidden} does not divide among {heads} heads; change hidden or heads so that it does"
        )


class Norm(nn.LayerNorm):
    """Layer norm over the last dimension, in the dtype of its weights: float32 even in a narrower network."""

    def __init__(self, hidden: int, eps: float = 1e-6) -> None:
        super().__init__(hidden, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        # not every device has a kernel for mixed dtypes
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention; one matmul makes queries, keys and values."""

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
    """Attention, then an MLP, each with a residual connection.

    In training, either is skipped per sample with probability `drop_path` (stochastic depth).
    """

    def __init__(self, hidden: int, heads: int, mlp: int, *, drop_path: float = 0.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.ln_1 = Norm(hidden, eps)
        self.self_attention = SelfAttention(hidden, heads)
        self.ln_2 = Norm(hidden, eps)
        # named by index: public checkpoints count a dropout in between, which this recipe does not use
        layers = {"0": nn.Linear(hidden, mlp), "1": nn.GELU(), "3": nn.Linear(mlp, hidden)}
        self.mlp = nn.Sequential(OrderedDict(layers))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.normal_(layer.bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.drop_path:
            x = x + self._drop_path(self.self_attention(self.ln_1(x)))
            return x + self._drop_path(self.mlp(self.ln_2(x)))
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]

    def _drop_path(self, x: Tensor) -> Tensor:
        """Zero for some samples, and the others scaled up."""
        kept = 1 - self.drop_path
        return x * x.new_empty(len(x), 1, 1).bernoulli_(kept).div_(kept)


def linear_drop_paths(drop_path: float, layers: int) -> list[float]:
    """Drop probability of each layer, rising linearly from 0 to that of the last."""
    return [drop_path * layer / max(1, layers - 1) for layer in range(layers)]


class TransformerEncoder(nn.Module):
    """Adds position embeddings and applies the blocks."""

    def __init__(self, tokens: int, heads: int, hidden: int, mlp: int, drop_paths: Sequence[float]) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, hidden).normal_(std=0.02))
        blocks = {
            f"encoder_layer_{i}": EncoderBlock(hidden, heads, mlp, drop_path=drop_path)
            for i, drop_path in enumerate(drop_paths)
        }
        self.layers = nn.Sequential(OrderedDict(blocks))
        self.ln = Norm(hidden)

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        """`places` replace the learnt positions, for images of another size."""
        return self.ln(self.layers(x + (self.pos_embedding if places is None else places)))  # type: ignore[no-any-return]


class PatchEncoder(nn.Module):
    """Images to tokens. A subclass adds its head, then calls `draw_patches`."""

    def __init__(
        self, *, image_px: int, patch_px: int, layers: int, heads: int, hidden: int, mlp: int, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes(image_px, patch_px, hidden, heads)
        self.patch_px, self.grid = patch_px, image_px // patch_px
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.conv_proj = nn.Conv2d(3, hidden, patch_px, stride=patch_px)
        self.encoder = TransformerEncoder(1 + self.grid**2, heads, hidden, mlp, linear_drop_paths(drop_path, layers))

    def draw_patches(self) -> None:
        """Initialises the patch embedding; last, which the seeds of published losses depend on."""
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (3 * self.patch_px**2)))
        nn.init.zeros_(self.conv_proj.bias)  # type: ignore[arg-type]

    def encode(self, images: Tensor) -> Tensor:
        """Encoded class token and patches, row by row: (N, tokens, hidden)."""
        patches = self.conv_proj(images)
        rows, columns = patches.shape[2:]
        tokens = torch.cat((self.class_token.expand(len(images), -1, -1), patches.flatten(2).transpose(1, 2)), 1)
        if (rows, columns) == (self.grid, self.grid):
            return self.encoder(tokens)  # type: ignore[no-any-return]
        return self.encoder(tokens, interpolate_positions(self.encoder.pos_embedding, rows, columns))  # type: ignore[no-any-return]


def interpolate_positions(places: Tensor, rows: int, columns: int) -> Tensor:
    """Position embeddings interpolated to another grid; the class token's is unchanged."""
    side = math.isqrt(places.shape[1] - 1)
    square = places[:, 1:].transpose(1, 2).reshape(1, -1, side, side)
    # not every device has a kernel for narrow dtypes
    moved = F.interpolate(square.float(), (rows, columns), mode="bicubic", align_corners=False).to(places.dtype)
    return torch.cat((places[:, :1], moved.flatten(2).transpose(1, 2)), 1)


def torchvision_name(name: str) -> str:
    """Our name of a parameter in torchvision's files, including older ones."""
    return name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3.")
