"""The tensors behind the pages: keys and values of every position that is evaluated."""

from __future__ import annotations

import torch

from ds4trio.models.config import ModelConfig

__all__ = ["KVCache"]


class KVCache:
    """Keys and values by layer and page.

    Within a page, keys lie dimension by dimension ([kv_heads, head_dim, page_size]) and values
    position by position ([page_size, kv_heads, value_dim]). Both products of attention then run
    along memory: a query times a page is a weighted sum of the page's rows, and so is a set of
    probabilities times the values. Attention over one query per sequence reads the pages where they
    are, without gathering a copy.

    On a GPU keys lie position by position too: its kernels load a position's key as one piece. The
    order of ``keys``' dimensions is the same everywhere, only their strides differ.

    Memory is asked for, not touched: the system provides it as pages come into use. One page more
    than asked for, ``padding_page``, belongs to nobody: rows that fill up a batch write there.

    Args:
        config: of the model.
        pages: how many.
        page_size: positions in each.
        dtype, device: of both tensors.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        layers, heads, width = config.layers, config.kv_heads, config.head_dim
        places = (layers, pages + 1, page_size, heads)
        self.pages = pages
        self.page_size = page_size
        self.padding_page = pages
        by_dimension = (layers, pages + 1, heads, width, page_size)
        if device.type == "cuda":
            self.keys = torch.empty((*places, width), dtype=dtype, device=device).permute(
                0, 1, 3, 4, 2
            )
        else:
            self.keys = torch.empty(by_dimension, dtype=dtype, device=device)
        self.values = torch.empty((*places, config.value_dim), dtype=dtype, device=device)

    def write(
        self,
        layer: int,
        pages: torch.Tensor,
        offsets: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Store rows of keys and values ([rows, kv_heads, head_dim] and [..., value_dim]).

        Args:
            layer: of the decoder.
            pages, offsets: int64 [rows], where each row goes; no place twice.
        """
        self.keys[layer][pages, :, :, offsets] = keys
        self.values[layer][pages, offsets] = values

    def read(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy one sequence's pages (int64 [count]), as they lie in order.

        Returns:
            Keys and values, [kv_heads, count * page_size, head_dim] and [..., value_dim].
        """
        keys = self.keys[layer].index_select(0, pages).permute(1, 0, 3, 2).flatten(1, 2)
        values = self.values[layer].index_select(0, pages).permute(2, 0, 1, 3).flatten(1, 2)
        return keys, values
