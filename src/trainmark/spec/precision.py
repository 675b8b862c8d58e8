"""The number formats a run can train in, one word each."""

from __future__ import annotations

from dataclasses import dataclass

from trainmark.spec.errors import UsageError, nearest


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What one word asks of weights, autocast and the loss scaler; types by torch's names."""

    name: str
    weights: str = "float32"
    """Type the weights of convolutions and linear layers are held in; norms stay float32, and where this is not
    float32 the optimizer updates a float32 copy, so that small updates are not lost."""
    autocast: str | None = None
    """Type autocast lowers matrix products and convolutions to, if autocast is used."""
    scales_loss: bool = False
    """float16 gradients underflow unless the loss is scaled up first."""
    allows_tf32: bool = False

    @classmethod
    def parse(cls, text: str) -> Precision:
        found = PRECISIONS.get(text.strip().lower())
        if found is None:
            raise UsageError(f"precision {text!r} is not known; {nearest(text, PRECISIONS)}")
        return found

    @property
    def computes_in(self) -> str:
        """The type most arithmetic is done in, by torch's name; `tf32` where float32 is rounded on the way in."""
        if self.allows_tf32:
            return "tf32"
        return self.autocast or self.weights

    def __str__(self) -> str:
        return self.name


PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision(name="fp32"),
        Precision(name="tf32", allows_tf32=True),
        Precision(name="fp16", weights="float16", scales_loss=True),
        Precision(name="bf16", weights="bfloat16"),
        Precision(name="amp-fp16", autocast="float16", scales_loss=True),
        Precision(name="amp-bf16", autocast="bfloat16"),
    )
}
