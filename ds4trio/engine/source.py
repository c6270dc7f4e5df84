"""Weights on their way from a file into the network, with their shapes checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from ds4trio.engine.apart import HeadNorm, OutputNorm, make_normalise
from ds4trio.engine.linear import (
    Gated,
    Linear,
    Pair,
    activation_dtype,
    make_gated,
    make_linear,
)
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.rope import interleaved_rows
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig

if TYPE_CHECKING:
    from ds4trio.engine.native.packed import Packed, PackedFile

__all__ = ["WeightSource"]


class WeightSource:
    """Makes the parts of a network out of weights.

    Args:
        config: of the model.
        weights: tensors by their names in ``models/tensors.py``; each is read once.
        dtype, device, batch_invariant: as for ``make_linear``.
        kept: where packed forms are kept; None keeps them nowhere.
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
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._weights = weights
        self._batch_invariant = batch_invariant
        self._kept = kept
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

        return self.product(name, weights, readable=readable)

    def product(
        self,
        name: str,
        weights: Callable[[], tuple[torch.Tensor, torch.Tensor | None]],
        *,
        readable: bool = False,
        dtype: str | None = None,
    ) -> Linear:
        """A product of weights that are made when they are needed, and kept by this name; in
        another dtype than the others have where ``dtype`` says so."""
        return make_linear(
            weights,
            dtype=dtype or self.dtype,
            device=self.device,
            batch_invariant=self._batch_invariant,
            readable=readable,
            name=name,
            kept=self._kept,
        )

    def packed(self, name: str, pack: Callable[[], Packed]) -> Packed:
        """A weight in a form of kernels of our own, kept by this name."""
        return pack() if self._kept is None else self._kept.get(name, pack)

    def gates(self, name: str, width: int, *, bias: bool = False) -> tuple[Pair, Pair | None]:
        """Weights of gates and ups of an MLP of this name, and biases."""
        parts = (f"{name}.gate_proj", f"{name}.up_proj")
        gate, up = (self.take(f"{n}.weight", width, self.config.hidden_size) for n in parts)
        if not bias:
            return (gate, up), None
        first, second = (self.take(f"{n}.bias", width) for n in parts)
        return (gate, up), (first, second)

    def gated(self, name: str, width: int, *, bias: bool = False) -> Gated:
        """Gates and ups of an MLP of this name."""
        return make_gated(
            lambda: self.gates(name, width, bias=bias),
            width,
            self.config.activation,
            dtype=self.dtype,
            device=self.device,
            batch_invariant=self._batch_invariant,
            name=name,
            kept=self._kept,
        )
