"""A mixture of experts: an MLP of which each row uses a few parts (arXiv:2401.04088).

Routing needs the host, on every device: which experts there are to multiply with must be known
where the products are started. So a step with experts cannot be recorded (``graphs.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ds4trio.engine.linear import is_native
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.source import WeightSource
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import Experts

__all__ = ["Mixture", "Router", "Routes"]


@dataclass(frozen=True, slots=True)
class Routes:
    """Which rows go through which experts, on the device of the rows.

    Attributes:
        starts: for each expert where its part of what follows begins, and the end of the last.
        rows: int64 [rows * used], those of an expert rising.
        shares: float32 [rows * used], what the expert's results are multiplied by.
        gates: float32 [rows], of the shared MLP; None where it has none.
    """

    starts: list[int]
    rows: torch.Tensor
    shares: torch.Tensor
    gates: torch.Tensor | None


class Router:
    """Chooses experts. It multiplies in float32 in every dtype: rounding must not send a row
    through other experts.

    Args:
        source: of the weights.
        name: of the layer's MLP.
        experts: of the model.
        scale: of all shares, besides that of the experts.
        hashed: experts are not chosen but looked up, by the row's token.
    """

    def __init__(
        self,
        source: WeightSource,
        name: str,
        experts: Experts,
        *,
        scale: float,
        hashed: bool = False,
    ) -> None:
        self._experts = experts
        self._step = source.step
        self._by_token: torch.Tensor | None = None
        if hashed:
            shape = source.config.vocab_size, experts.used
            self._by_token = _expert_numbers(source, f"{name}.router.by_token", shape, experts)
        self._scale = scale * experts.scale
        self._correction = np.empty(0, np.float32)
        if experts.correction and not hashed:
            correction = source.take(f"{name}.router.correction", experts.count)
            self._correction = correction.float().numpy().copy()
        width = source.config.hidden_size

        def weights() -> tuple[torch.Tensor, torch.Tensor | None]:
            weight = source.take(f"{name}.router.weight", experts.count, width).float()
            bias = None
            if experts.router_bias:
                bias = source.take(f"{name}.router.bias", experts.count).float()
            if experts.shared_gate:  # one product for both
                gate = source.take(f"{name}.shared_gate.weight", width).float()
                weight = torch.cat([weight, gate.unsqueeze(0)])
                bias = None if bias is None else torch.cat([bias, bias.new_zeros(1)])
            return weight, bias

        self._product = source.product(f"{name}.router", weights, dtype="float32")

    def __call__(self, rows: torch.Tensor) -> Routes:
        """Choose for normalised rows, float32 [rows, hidden_size]."""
        # Here, since a model without experts on a GPU has no use for the compiler.
        from ds4trio.engine.native.routing import (
            CHOSEN,
            ROOT_SOFTPLUS,
            SIGMOID,
            SOFTMAX,
            route,
        )

        kinds = {
            "softmax": SOFTMAX,
            "sigmoid": SIGMOID,
            "root softplus": ROOT_SOFTPLUS,
            "chosen": CHOSEN,
        }
        e = self._experts
        logits = self._product(rows).cpu()
        count = len(logits)
        starts = torch.empty(e.count + 1, dtype=torch.int64)
        chosen = torch.empty(count * e.used, dtype=torch.int64)
        shares = torch.empty(count * e.used)
        gates = torch.empty(count if e.shared_gate else 0)
        route(
            logits.numpy(),
            self._correction,
            e.used,
            kinds[e.scoring],
            e.normalise,
            self._scale,
            e.groups,
            e.groups_used,
            e.group_score == "best two",
            self._fixed().numpy(),
            starts.numpy(),
            chosen.numpy(),
            shares.numpy(),
            gates.numpy(),
        )
        device = rows.device
        return Routes(
            starts.tolist(),
            chosen.to(device),
            shares.to(device),
            gates.to(device) if e.shared_gate else None,
        )

    def _fixed(self) -> torch.Tensor:
        if self._by_token is None:
            return torch.empty((0, self._experts.used), dtype=torch.int64)
        return self._by_token.index_select(0, self._step.tokens.cpu())


def _expert_numbers(
    source: WeightSource, name: str, shape: tuple[int, int], experts: Experts
) -> torch.Tensor:
    numbers = source.take(name, *shape).to(torch.int64).clone()
    if not 0 <= int(numbers.min()) <= int(numbers.max()) < experts.count:
        raise ModelUnavailable(f"{name} has numbers of experts that there are not")
    return numbers


class Mixture:
    """A layer's experts, and the MLP beside them that every row goes through.

    The sum of a row's results begins with that MLP's and goes on by the experts' numbers, in
    float32, so a row has the same bits in any company where products give it the same.

    Args:
        source: of the weights.
        name: of the layer's MLP.
        experts: of the model.
        scale: of the result.
        hashed: as for ``Router``.
    """

    def __init__(
        self,
        source: WeightSource,
        name: str,
        experts: Experts,
        *,
        scale: float,
        hashed: bool = False,
    ) -> None:
        self._source = source
        self._native = is_native(source.dtype, source.device)
        self._router = Router(source, name, experts, scale=scale, hashed=hashed)
        self._experts = [
            _Expert(source, f"{name}.experts.{number}", experts.width, bias=experts.bias)
            for number in range(experts.count)
        ]
        self._shared = None
        if experts.shared_width:
            self._shared = _Expert(
                source,
                f"{name}.shared",
                experts.shared_width,
                bias=source.config.mlp_bias,
                scale=scale,
            )

    def __call__(self, hidden: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        """[rows, hidden_size], normalised first by ``norm``; the same shape in new memory."""
        return self._sum(hidden, norm).to(hidden.dtype)

    def add_to(self, hidden: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        """Add the result to hidden states themselves."""
        return hidden.add_(self._sum(hidden, norm))

    def _sum(self, hidden: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        exact = hidden.float()
        if norm is not None:
            exact = self._source.normalised(exact, RMSNorm(norm.weight.float(), norm.epsilon))
        routes = self._router(exact)
        rows = exact.to(hidden.dtype)
        if self._shared is None:
            total = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        else:
            total = self._shared(rows).float()
            if routes.gates is not None:
                total.mul_(routes.gates.unsqueeze(1))
        for number, expert in enumerate(self._experts):
            begin, end = routes.starts[number], routes.starts[number + 1]
            if begin == end:
                continue
            at, shares = routes.rows[begin:end], routes.shares[begin:end]
            results = expert(rows if end - begin == len(rows) else rows.index_select(0, at))
            self._add(total, at, results, shares)
        return total

    def _add(
        self, total: torch.Tensor, at: torch.Tensor, results: torch.Tensor, shares: torch.Tensor
    ) -> None:
        if self._native:
            from ds4trio.engine.native.routing import add_shares

            add_shares(results.numpy(), at.numpy(), shares.numpy(), total.numpy())
        else:
            total.index_add_(0, at, results.float().mul_(shares.unsqueeze(1)))


class _Expert:
    def __init__(
        self, source: WeightSource, name: str, width: int, *, bias: bool, scale: float = 1.0
    ) -> None:
        self._gated = source.gated(name, width, bias=bias)
        self._down = source.linear(
            f"{name}.down_proj", source.config.hidden_size, width, bias=bias, scale=scale
        )

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._down(self._gated(rows))
