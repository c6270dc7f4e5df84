"""What ``config.json`` of transformers, releases 4 and 5, says of a model of any family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ds4trio.models.architecture import ModelConfig
from ds4trio.models.fields import FieldReader, refuse, token_ids
from ds4trio.models.rotary import ROPE_KINDS, Rope, RopeScaling

__all__ = ["HfFile", "hf_activation", "hf_config", "hf_rope"]

ACTIVATIONS: Mapping[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class HfFile:
    """A model's ``config.json``.

    Attributes:
        values: its content.
        ends: further end tokens, those of ``generation_config.json`` and of the tokenizer.
    """

    values: Mapping[str, Any]
    ends: Sequence[int] = ()

    @property
    def read(self) -> FieldReader:
        return FieldReader(self.values)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A part of the config; an empty one where there is none."""
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            refuse(f"{key} is {value!r}; it must be an object")
        return value

    def with_defaults(self, defaults: Mapping[str, Any]) -> HfFile:
        """What the config says, and these values for keys that it does not have."""
        return HfFile({**defaults, **self.values}, self.ends)


def hf_activation(values: Mapping[str, Any], default: str = "silu") -> Literal["silu", "gelu_tanh"]:
    """The MLP's. Raises ModelUnavailable for one that is not known."""
    name = values.get("hidden_activation") or values.get("hidden_act") or default
    if not isinstance(name, str) or name not in ACTIVATIONS:
        refuse(f"activation {name!r} is not known; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def hf_config(
    file: HfFile,
    *,
    ropes: Sequence[Rope] | None = None,
    tied: bool = False,
    theta: float = 10000.0,
    end: int | None = 2,
    partly: bool = False,
) -> ModelConfig:
    """What all families have in common; a family replaces in it what it has otherwise.

    Args:
        file: the config.
        ropes: the rotary embeddings, where they are not one over whole heads.
        tied, theta, end: what a config means that does not say.
        partly: as for ``hf_rope``.

    Raises:
        ModelUnavailable: an activation or rotary kind that is not known, or a value of the wrong
            type.
    """
    read, values = file.read, file.values
    if not read.flag("is_causal", True) or read.flag("use_bidirectional_attention", False):
        refuse("it sees what comes after a position too, as models do that make embeddings")
    heads = read.integer("num_attention_heads", 32)
    hidden = read.integer("hidden_size", 4096)
    head_dim = read.integer("head_dim", hidden // max(heads, 1))
    ends = [*file.ends, *token_ids(values.get("eos_token_id", end))]
    if ropes is None:
        ropes = (hf_rope(file, head_dim, theta=theta, partly=partly),)
    biased = read.flag("attention_bias", False)
    return ModelConfig(
        architecture=str(values.get("model_type")),
        vocab_size=read.integer("vocab_size", 32000),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size", 11008),
        layers=read.integer("num_hidden_layers", 32),
        heads=heads,
        kv_heads=read.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=read.number("rms_norm_eps", 1e-6),
        ropes=tuple(ropes),
        context_length=read.integer("max_position_embeddings", 2048),
        activation=hf_activation(values),
        tied_head=read.flag("tie_word_embeddings", tied),
        attention_bias=biased,
        output_bias=biased,
        mlp_bias=read.flag("mlp_bias", False),
        bos_token_id=next(iter(token_ids(values.get("bos_token_id", 1))), None),
        eos_token_ids=tuple(dict.fromkeys(ends)),
    )


def hf_rope(
    file: HfFile,
    head_dim: int,
    *,
    theta: float = 10000.0,
    kind: str | None = None,
    share: float = 1.0,
    partly: bool = False,
) -> Rope:
    """Base and scaling, from ``rope_parameters`` or the older pair of keys.

    Args:
        file: the config.
        head_dim: dimensions of a head.
        theta: the base where the config does not say.
        kind: of layers, where parameters are given for several.
        share: of a head that is turned, where the config does not say.
        partly: a config may say that only a part of each head is turned. Of other families
            transformers ignores that, or fails.

    Raises:
        ModelUnavailable: a scaling that is not known, or a value that cannot be.
    """
    values = file.values
    parameters = {**file.mapping("rope_scaling"), **file.mapping("rope_parameters")}
    if kind is not None and isinstance(parameters.get(kind), dict):
        parameters = parameters[kind]
    both = FieldReader({**values, **parameters})
    part = both.number("partial_rotary_factor", share)
    if not 0 < part <= 1:
        refuse(f"partial_rotary_factor is {part}; it must be above 0 and at most 1")
    if part != 1 and not partly:
        refuse(f"partial_rotary_factor is {part}, and this family turns whole heads")
    return Rope(
        theta=both.number("rope_theta", theta),
        dims=int(head_dim * part),
        scaling=_scaling(file.read, parameters),
    )


def _scaling(config: FieldReader, parameters: Mapping[str, Any]) -> RopeScaling | None:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return None
    kind = "longrope" if kind == "su" else kind  # what Phi-3 called it first
    if kind not in ROPE_KINDS:
        refuse(f"unknown rotary scaling {kind!r}; known: {', '.join(ROPE_KINDS)}")
    read = FieldReader(parameters)
    context = config.integer("max_position_embeddings", 2048)
    original = context  # which is where a dynamic base begins to grow
    if kind != "dynamic":
        original = read.integer(
            "original_max_position_embeddings",
            config.integer("original_max_position_embeddings", context),
        )
    stretched = kind in ("yarn", "longrope")
    known: Any = kind  # one of the scalings by now
    return RopeScaling(
        kind=known,
        factor=read.number("factor", context / max(original, 1) if stretched else None),
        original_context_length=original,
        low_freq_factor=read.number("low_freq_factor", 1.0),
        high_freq_factor=read.number("high_freq_factor", 4.0),
        beta_fast=read.number("beta_fast", 32.0),
        beta_slow=read.number("beta_slow", 1.0),
        attention_factor=read.optional("attention_factor"),
        mscale=read.optional("mscale"),
        mscale_all_dim=read.optional("mscale_all_dim"),
        truncate=read.flag("truncate", True),
        short_factors=_numbers(parameters, "short_factor"),
        long_factors=_numbers(parameters, "long_factor"),
    )


def _numbers(parameters: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = parameters.get(key) or ()
    if not isinstance(values, list | tuple) or not all(
        isinstance(value, int | float) for value in values
    ):
        refuse(f"{key} is {values!r}; it must be a list of numbers")
    return tuple(float(value) for value in values)
