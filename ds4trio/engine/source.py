"""Weights on their way from a file into the network, with their shapes checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ds4trio.engine.adapters import ActiveAdapters, AdaptedGated, AdaptedLinear, LowRank
from ds4trio.engine.apart import HeadNorm, OutputNorm, make_normalise
from ds4trio.engine.headwise import Headwise, make_headwise
from ds4trio.engine.linear import (
    ROUNDED,
    Gated,
    Linear,
    Pair,
    activation_dtype,
    make_gated,
    make_linear,
    side_by_side,
)
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.rope import interleaved_rows
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig
from ds4trio.models.lora import Adapter

if TYPE_CHECKING:
    from ds4trio.engine.native.packed import PackedFile

__all__ = ["StepTokens", "WeightSource"]

Join = Callable[[dict[str, torch.Tensor]], torch.Tensor]


@dataclass(slots=True)
class StepTokens:
    """The token of each row of the step that runs, int64 [rows]. Set by the decoder."""

    tokens: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


class WeightSource:
    """Makes the parts of a network out of weights.

    Args:
        config: of the model.
        weights: tensors by their names in ``models/tensors.py``; each is read once.
        dtype, device, batch_invariant: as for ``make_linear``.
        kept: where packed forms are kept; None keeps them nowhere.
        adapters: that sequences may have.
        active: says which rows of a step have which.

    Attributes:
        step: what the parts may want to know of the step that runs.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        dtype: str,
        device: torch.device,
        batch_invariant: bool,
        kept: PackedFile | None,
        adapters: Sequence[Adapter] = (),
        active: ActiveAdapters | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._weights = weights
        self._batch_invariant = batch_invariant
        self._kept = kept
        self._adapters = adapters
        self._active = active or ActiveAdapters()
        self.step = StepTokens()
        self._normalise = make_normalise(dtype, device, batch_invariant=batch_invariant)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor by its full name, as it comes.

        Raises:
            ModelUnavailable: there is none, or it has another shape.
        """
        try:
            tensor = self._weights[name]
        except KeyError:
            raise ModelUnavailable(f"the model has no tensor {name}") from None
        if tuple(tensor.shape) != shape:
            raise ModelUnavailable(f"{name} has shape {tuple(tensor.shape)}, not {shape}")
        return tensor

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the device, in the dtype of hidden states."""
        return tensor.to(self.device, activation_dtype(self.dtype))

    def norm(self, name: str, width: int) -> RMSNorm:
        weight = self.take(f"{name}.weight", width).float() + self.config.norm_offset
        return RMSNorm(self.placed(weight), self.config.norm_eps)

    def output_norm(self, name: str) -> OutputNorm:
        """Of what a half of a block gives; it carries the scale of that."""
        norm = self.norm(name, self.config.hidden_size)
        scaled = RMSNorm(norm.weight * self.config.residual_scale, norm.epsilon)
        return OutputNorm(scaled, self._normalise)

    def normalised(self, rows: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
        """Rows ([rows, width]) for several products, in new memory; where rows have the same bits
        in any company, so has this."""
        return self._normalise(rows.clone().unsqueeze(1), norm).squeeze(1)

    def head_norm(self, name: str, dims: int) -> HeadNorm | None:
        """Of queries and keys, ``dims`` of which are turned in each head; None where none is.

        Rows of their products are in another order than in the file, and so are its weights. The
        norm of queries carries attention's scale.
        """
        c = self.config
        if c.head_norm == "none":
            return None

        def norm(part: str, heads: int, scale: float) -> RMSNorm:
            width = c.head_dim * (heads if c.head_norm == "whole" else 1)
            weight = self.take(f"{name}.{part}.weight", width).float() + c.norm_offset
            weight = interleaved_rows(weight * scale, c.head_dim, dims)
            return RMSNorm(self.placed(weight), c.norm_eps)

        return HeadNorm(
            norm("q_norm", c.heads, c.scale),
            norm("k_norm", c.kv_heads, 1.0),
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            normalise=self._normalise,
        )

    def linear(
        self,
        name: str,
        outputs: int,
        inputs: int,
        *,
        bias: bool = False,
        readable: bool = False,
        scale: float = 1.0,
    ) -> Linear:
        """A product by its name, less ``.weight``; what it gives is multiplied by ``scale``."""

        def weights() -> tuple[torch.Tensor, torch.Tensor | None]:
            weight = self.take(f"{name}.weight", outputs, inputs)
            own = self.take(f"{name}.bias", outputs) if bias else None
            if scale != 1.0:
                weight, own = weight.float() * scale, None if own is None else own.float() * scale
            return weight, own

        return self.product(
            name, weights, {name: outputs}, lambda parts: parts[name] * scale, readable=readable
        )

    def product(
        self,
        name: str,
        weights: Callable[[], tuple[torch.Tensor, torch.Tensor | None]],
        parts: Mapping[str, int] | None = None,
        joined: Join | None = None,
        *,
        readable: bool = False,
        dtype: str | None = None,
    ) -> Linear:
        """A product of weights that are made when they are needed, and kept by this name.

        Args:
            name: by which it is kept.
            weights: its weight and bias.
            parts: the names of the products in the file that it is made of, and their outputs.
            joined: puts rows for these parts ([outputs, ...]) together, as ``weights`` does.
            readable: as for ``make_linear``.
            dtype: another than other products have; None for theirs.
        """
        product = make_linear(
            weights,
            dtype=dtype or self.dtype,
            device=self.device,
            batch_invariant=self._batch_invariant,
            readable=readable,
            name=name,
            kept=self._kept,
        )
        if parts is None or joined is None:
            return product
        changes = self._changes(parts, joined)
        if not changes:
            return product
        return AdaptedLinear(product, changes, self._active, self._normalise)

    def _changes(self, parts: Mapping[str, int], joined: Join) -> dict[str, LowRank]:
        """What each adapter adds to a product that is made of these parts."""
        changes = {}
        for adapter in self._adapters:
            pairs = {name: adapter.pairs[name] for name in parts if name in adapter.pairs}
            if not pairs:
                continue
            downs = torch.cat([pair.down for pair in pairs.values()])
            ups, start = {}, 0
            for name, outputs in parts.items():
                ups[name] = torch.zeros(outputs, len(downs))
                if name in pairs:
                    end = start + len(pairs[name].down)
                    ups[name][:, start:end] = pairs[name].up
                    start = end
            changes[adapter.name] = LowRank(self._small(downs), self._small(joined(ups)))
        return changes

    def _small(self, weight: torch.Tensor) -> Linear:
        return make_linear(
            lambda: (weight, None),
            dtype="float32" if self.dtype in ROUNDED else self.dtype,
            device=self.device,
            batch_invariant=self._batch_invariant,
        )

    def headwise(self, name: str, heads: int, weights: Callable[[], torch.Tensor]) -> Headwise:
        """Products of heads, of weights as ``make_headwise`` has them, kept by this name."""
        return make_headwise(
            weights,
            heads,
            dtype=self.dtype,
            device=self.device,
            batch_invariant=self._batch_invariant,
            name=name,
            kept=self._kept,
        )

    def gated(self, name: str, width: int, *, bias: bool = False) -> Gated:
        """Gates and ups of an MLP of this name."""
        parts = (f"{name}.gate_proj", f"{name}.up_proj")

        def weights() -> tuple[Pair, Pair | None]:
            gate, up = (self.take(f"{n}.weight", width, self.config.hidden_size) for n in parts)
            if not bias:
                return (gate, up), None
            first, second = (self.take(f"{n}.bias", width) for n in parts)
            return (gate, up), (first, second)

        product = make_gated(
            weights,
            width,
            self.config.activation,
            dtype=self.dtype,
            device=self.device,
            batch_invariant=self._batch_invariant,
            name=name,
            kept=self._kept,
        )

        def joined(rows: dict[str, torch.Tensor]) -> torch.Tensor:
            gate, up = (rows[n] for n in parts)
            return side_by_side(gate, up, dtype=self.dtype, device=self.device)

        changes = self._changes(dict.fromkeys(parts, width), joined)
        if not changes:
            return product
        return AdaptedGated(product, changes, self._active, self._normalise)
