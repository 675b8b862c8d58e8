"""How many nodes and how many devices on each: `1x1`, `1x8`, `2x8`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainmark.record.errors import UsageError


@dataclass(frozen=True, kw_only=True, order=True)
class Topology:
    nodes: int
    devices_per_node: int

    @classmethod
    def parse(cls, text: str) -> Topology:
        match = re.fullmatch(r"([1-9][0-9]{0,5})[xX×*]([1-9][0-9]{0,5})", text.strip())
        if not match:
            raise UsageError(f"topology {text!r} is not NODESxDEVICES; try '1x8'")
        return cls(nodes=int(match[1]), devices_per_node=int(match[2]))

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.devices_per_node}"
