"""The shape of a decoder, whatever family and file it comes from."""

from __future__ import annotations

from typing import Literal

import msgspec

from ds4trio.models.fields import refuse
from ds4trio.models.rotary import Rope

__all__ = [
    "MOST_DIMENSIONS",
    "Compressed",
    "Experts",
    "Latent",
    "LayerKind",
    "ModelConfig",
    "Streams",
]

MOST_LAYERS = 4096
"""A damaged file may say any number, and lists as long would be made."""

MOST_DIMENSIONS = 1 << 20
"""Of a latent vector and what is made of it; a square root is taken of them."""

MOST_STREAMS = 64
"""Residual streams, and rounds of the normalisation between them; each is work for every row."""


class LayerKind(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer may have that its neighbours have not.

    Attributes:
        window: a position sees so many of the last ones, itself among them; 0 sees all.
        rope: which of the model's ``ropes`` turns its queries and keys; None: they are not turned.
        experts: its MLP is a mixture of the model's experts.
        hashed: which experts a token goes through is not computed, but looked up by its id.
        compressed: besides the window it sees what earlier positions were compressed to: nothing,
            the entries that suit best (``sparse``), or all of them (``heavy``).
    """

    window: int = 0
    rope: int | None = 0
    experts: bool = False
    hashed: bool = False
    compressed: Literal["no", "sparse", "heavy"] = "no"


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts in place of one MLP (arXiv:2401.04088, arXiv:2401.06066).

    Attributes:
        count, used: how many there are, and how many a token goes through.
        width: of each.
        shared_width: of the MLP that every token goes through besides; 0: there is none.
        shared_gate: that MLP's result is multiplied by the sigmoid of a product of its own.
        scoring: what becomes of the router's logits: ``softmax`` over all experts, ``sigmoid`` of
            each, ``root softplus`` of each, or ``chosen``: softmax over those that were chosen.
        normalise: weights of those chosen are divided by their sum.
        scale: and then multiplied by this.
        correction: a number for each expert is added to its score where experts are chosen, and
            only there (arXiv:2408.15664).
        groups, groups_used: experts are chosen out of these groups only, those of the best score;
            1 and 1 where there are no groups.
        group_score: of a group: its best expert's (``best``), or the sum of its best two's
            (``best two``).
        router_bias, bias: whether the router and the experts have biases.
    """

    count: int
    used: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    scoring: Literal["softmax", "sigmoid", "root softplus", "chosen"] = "softmax"
    normalise: bool = True
    scale: float = 1.0
    correction: bool = False
    groups: int = 1
    groups_used: int = 1
    group_score: Literal["best", "best two"] = "best"
    router_bias: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.used <= self.count:
            refuse(f"{self.used} of {self.count} experts cannot be used")
        if self.width < 1 or self.shared_width < 0:
            refuse(f"experts of width {self.width} beside {self.shared_width} cannot be")
        if self.groups < 1 or self.count % self.groups:
            refuse(f"{self.count} experts cannot be cut into {self.groups} groups")
        if not 1 <= self.groups_used <= self.groups:
            refuse(f"{self.groups_used} of {self.groups} groups of experts cannot be used")
        if self.used > self.groups_used * (self.count // self.groups):
            refuse(f"{self.groups_used} groups do not hold {self.used} experts")


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek V2, arXiv:2405.04434): what is cached of a position is
    one vector that keys and values of all heads are made of.

    Attributes:
        query_rank: width of the vector that queries are made of; 0: they are made of the hidden
            state itself.
        rank: width of the cached vector.
        plain_dim, turned_dim: dimensions of a query and key, without and with rotation.
        value_dim: dimensions of a value.
        neighbours: dimensions that turn together lie next to each other in the file.
        split: the file has what makes keys of the vector and what makes values of it in two
            tensors, head by head, and not in one.
        norm_eps: of the norms of both vectors. It is the same in all files, whatever they say of
            other norms.
    """

    query_rank: int
    rank: int
    plain_dim: int
    turned_dim: int
    value_dim: int
    neighbours: bool = True
    split: bool = False
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        sizes = {
            "kv_lora_rank": self.rank,
            "qk_nope_head_dim": self.plain_dim,
            "qk_rope_head_dim": self.turned_dim,
            "v_head_dim": self.value_dim,
        }
        for name, size in sizes.items():
            if not 1 <= size <= MOST_DIMENSIONS:
                refuse(f"{name} is {size}; it must be from 1 to {MOST_DIMENSIONS}")
        if self.query_rank < 0:
            refuse(f"q_lora_rank is {self.query_rank}; it cannot be negative")


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """Attention to a window of positions and to compressed entries of those before (DeepSeek V4).

    There is one key/value head, whose key is its value; the last ``turned_dim`` dimensions turn.

    Attributes:
        query_rank: width of the vector that queries are made of.
        turned_dim: dimensions of a head that are turned.
        sparse_ratio, heavy_ratio: positions that become one entry, by kind of layer. An entry of a
            sparse layer is made of the positions of the one before too.
        index_heads, index_dim: of the index, which says which entries of a sparse layer suit.
        index_used: entries of a sparse layer that a position sees.
        output_groups, output_rank: heads are put together in so many groups, each of which becomes
            a vector of this width, before what they say is.
    """

    query_rank: int
    turned_dim: int
    sparse_ratio: int
    heavy_ratio: int
    index_heads: int
    index_dim: int
    index_used: int
    output_groups: int
    output_rank: int

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 1 <= (size := getattr(self, name)) <= MOST_DIMENSIONS:
                refuse(f"{name} of attention is {size}; it must be from 1 to {MOST_DIMENSIONS}")
        if self.turned_dim > self.index_dim:
            refuse(
                f"keys of an index have {self.index_dim} dimensions, of which {self.turned_dim} "
                "cannot be turned"
            )

    def ratio(self, kind: LayerKind) -> int:
        """Positions that become one entry in a layer of this kind."""
        return self.sparse_ratio if kind.compressed == "sparse" else self.heavy_ratio


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """Several residual streams in place of one: manifold-constrained hyper-connections
    (arXiv:2512.24880).

    Attributes:
        count: of streams.
        iterations: of the normalisation that makes a matrix doubly stochastic.
        epsilon: that keeps its sums from zero.
    """

    count: int
    iterations: int
    epsilon: float

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_STREAMS:
            refuse(f"{self.count} residual streams cannot be; known: 1 to {MOST_STREAMS}")
        if not 1 <= self.iterations <= MOST_STREAMS:
            refuse(f"{self.iterations} rounds of a normalisation cannot be")
        if self.epsilon < 0:
            refuse(f"hc_eps is {self.epsilon}; it cannot be negative")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's shape. Sizes are in elements.

    Attributes:
        architecture: the family's name, as ``families`` has it.
        vocab_size: rows of the embedding; token ids are below it.
        hidden_size, intermediate_size: widths of the residual stream and of the MLP.
        layers, heads, kv_heads, head_dim: ``heads`` is a multiple of ``kv_heads``; ``heads *
            head_dim`` need not be ``hidden_size``. With ``latent``, those of what is attended to:
            one key/value head, whose key is the cached vector and the turned part.
        kinds: one for each layer; none where all are plain.
        ropes: the rotary embeddings that layers refer to.
        norm_eps: added to the mean square in RMSNorm.
        norm_offset: added to the weights of norms.
        norms: where a block's norms stand: ``before`` attention and MLP, ``after`` them (what they
            give is normalised, then added), or ``around`` them, which is both.
        head_norm: queries and keys are normalised before they are turned: not, each ``head`` by
            itself, or all heads as one (``whole``).
        activation: of the MLP's gates: ``silu``, ``gelu_tanh``, ``clamped`` (gpt-oss's), or
            ``limited`` (DeepSeek V4's silu of clamped numbers).
        attention_scale: scores are multiplied by it; None: ``head_dim ** -0.5``.
        attention_soft_cap, logit_soft_cap: numbers become ``cap * tanh(number / cap)``; 0: not.
        sinks: each head has a score more, whose value is zero (arXiv:2309.17453).
        embedding_scale, residual_scale, logit_scale: factors of the embedding, of what a block's
            halves add, and of logits.
        context_length: the most positions the model was made for.
        tied_head: the output head is the embedding; there is no ``lm_head.weight``.
        attention_bias, output_bias, mlp_bias: whether the products of queries, keys and values,
            the one after attention, and those of the MLP have biases.
        experts, latent, compressed, streams: where the model has them.
        bos_token_id: the token that begins a text, if there is one.
        eos_token_ids: every token that ends a generation.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    ropes: tuple[Rope, ...]
    context_length: int
    kinds: tuple[LayerKind, ...] = ()
    norm_offset: float = 0.0
    norms: Literal["before", "after", "around"] = "before"
    head_norm: Literal["none", "head", "whole"] = "none"
    activation: Literal["silu", "gelu_tanh", "clamped", "limited"] = "silu"
    attention_scale: float | None = None
    attention_soft_cap: float = 0.0
    logit_soft_cap: float = 0.0
    sinks: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    tied_head: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    compressed: Compressed | None = None
    streams: Streams | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "context_length": self.context_length,
        }
        for name, size in sizes.items():
            if size < 1:
                refuse(f"{name} is {size}; it must be positive")
        if self.layers > MOST_LAYERS:
            refuse(f"{self.layers} layers are more than any model has")
        if self.heads % self.kv_heads:
            refuse(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads")
        if any(rope.dims > self.head_dim for rope in self.ropes):
            refuse(f"more than the {self.head_dim} dimensions of a head cannot be turned")
        if self.kinds and len(self.kinds) != self.layers:
            refuse(f"{len(self.kinds)} kinds of layers do not fit {self.layers} layers")
        for kind in self.kinds or (PLAIN,):
            if kind.rope is not None and not 0 <= kind.rope < len(self.ropes):
                refuse("a layer refers to a rotary embedding that there is not")
            if kind.experts and self.experts is None:
                refuse("a layer has experts, and the model says nothing about them")
            if kind.compressed != "no" and self.compressed is None:
                refuse("a layer compresses, and the model says nothing about how")
            if kind.window < 0:
                refuse(f"a window of {kind.window} positions cannot be")

        if self.compressed is not None and self.heads % self.compressed.output_groups:
            groups = self.compressed.output_groups
            refuse(f"{self.heads} heads cannot be put together in {groups} groups")

    def kind(self, layer: int) -> LayerKind:
        """What a layer is like."""
        return self.kinds[layer] if self.kinds else PLAIN

    @property
    def value_dim(self) -> int:
        """Dimensions of a value, as attention sees it."""
        return self.head_dim if self.latent is None else self.latent.rank

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def position_size(self) -> int:
        """Numbers that the cache holds of a position, in all layers."""
        if self.compressed is None:
            return self.layers * self.kv_heads * (self.head_dim + self.value_dim)
        return sum(self._compressed_size(self.kind(layer)) for layer in range(self.layers))

    def _compressed_size(self, kind: LayerKind) -> int:
        """Key, what is to be compressed, and a position's part of the entries."""
        own, index = self.head_dim, self.compressed.index_dim if self.compressed else 0
        match kind.compressed:
            case "sparse":
                return own + 4 * (own + index) + -(-(own + index) // 4)
            case "heavy":
                return own + 2 * own + -(-own // 16)
        return own


PLAIN = LayerKind()
