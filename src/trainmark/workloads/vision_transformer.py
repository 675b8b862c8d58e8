"""The blocks of a Vision Transformer, with the parameter names and initialisation every public checkpoint uses."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.workloads.cpu_ops import linear


class Norm(nn.LayerNorm):
    """Layer norm over the last dimension, in the type of its own weights: float32 even in a narrower network."""

    def __init__(self, hidden: int, eps: float = 1e-6) -> None:
        super().__init__(hidden, eps=eps)

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
        projected = linear(x, self.in_proj_weight, self.in_proj_bias).view(images, tokens, 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.out_proj(seen.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class EncoderBlock(nn.Module):
    """Attention, then two layers token by token, each added to what came in.

    In training, a sample goes without either of them with the chance `drop_path` (stochastic depth).
    """

    def __init__(self, hidden: int, heads: int, mlp: int, *, drop_path: float = 0.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.ln_1 = Norm(hidden, eps)
        self.self_attention = SelfAttention(hidden, heads)
        self.ln_2 = Norm(hidden, eps)
        # named by place: public checkpoints count a dropout in between, which this recipe has none of
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
        """Nothing for some samples, and as much more for the others as makes up for it."""
        kept = 1 - self.drop_path
        return x * x.new_empty(len(x), 1, 1).bernoulli_(kept).div_(kept)


def linear_drop_paths(drop_path: float, layers: int) -> list[float]:
    """The chance of each layer to be dropped: none for the first, rising evenly to that of the last."""
    return [drop_path * layer / max(1, layers - 1) for layer in range(layers)]


class TransformerEncoder(nn.Module):
    """Adds to each token where it is, and passes all of them through the blocks."""

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
        """`places` are other positions than the learnt ones, for images of another size."""
        return self.ln(self.layers(x + (self.pos_embedding if places is None else places)))  # type: ignore[no-any-return]


class PatchEncoder(nn.Module):
    """Images to tokens, for any network. A subclass adds its head, then calls `draw_patches`."""

    def __init__(
        self, *, image_px: int, patch_px: int, layers: int, heads: int, hidden: int, mlp: int, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.patch_px, self.grid = patch_px, image_px // patch_px
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.conv_proj = nn.Conv2d(3, hidden, patch_px, stride=patch_px)
        self.encoder = TransformerEncoder(1 + self.grid**2, heads, hidden, mlp, linear_drop_paths(drop_path, layers))

    def draw_patches(self) -> None:
        """Gives the patch embedding its first weights; last of all, which seeds of published losses are counted by."""
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (3 * self.patch_px**2)))
        nn.init.zeros_(self.conv_proj.bias)  # type: ignore[arg-type]

    def encode(self, images: Tensor) -> Tensor:
        """What the encoder makes of the class token and, after it, of the patches row by row: (N, tokens, hidden)."""
        patches = self.conv_proj(images)
        rows, columns = patches.shape[2:]
        tokens = torch.cat((self.class_token.expand(len(images), -1, -1), patches.flatten(2).transpose(1, 2)), 1)
        if (rows, columns) == (self.grid, self.grid):
            return self.encoder(tokens)  # type: ignore[no-any-return]
        return self.encoder(tokens, interpolate_positions(self.encoder.pos_embedding, rows, columns))  # type: ignore[no-any-return]


def interpolate_positions(places: Tensor, rows: int, columns: int) -> Tensor:
    """Positions learnt on a square of patches, for a grid of another size; the class token's stays as it is."""
    side = math.isqrt(places.shape[1] - 1)
    square = places[:, 1:].transpose(1, 2).reshape(1, -1, side, side)
    # a narrow type has no kernel everywhere
    moved = F.interpolate(square.float(), (rows, columns), mode="bicubic", align_corners=False).to(places.dtype)
    return torch.cat((places[:, :1], moved.flatten(2).transpose(1, 2)), 1)


def torchvision_name(name: str) -> str:
    """Ours for a parameter's name in torchvision's files, some of which were written before two were renamed."""
    return name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3.")
