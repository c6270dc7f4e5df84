"""``ds4trio inspect``: what a model is, and whether it will run here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import click
import msgspec

from ds4trio.cli.progress import TerminalProgress
from ds4trio.cli.terminal.sanitiser import Sanitiser
from ds4trio.engine.memory import plan_memory
from ds4trio.engine.outlook import DTYPES, Outlook, outlook, weights_bytes
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig
from ds4trio.models.default import ALIASES, cached
from ds4trio.models.facts import Facts, TensorFact
from ds4trio.models.headers import Looked, look_at_hub, look_at_path
from ds4trio.models.hub.choice import size_text
from ds4trio.models.hub.names import HubName
from ds4trio.models.resolve import DEFAULT_MODEL, ModelSource, read_name, resolve
from ds4trio.models.tensors import tensor_shapes

__all__ = ["inspect_model"]

TEMPLATE_LINES = 3
WIDTH = 72


@click.command("inspect")
@click.argument("model", default=DEFAULT_MODEL, required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs: one object.")
@click.option("--template", "template_only", is_flag=True, help="Print the chat template, whole.")
def inspect_model(model: str, as_json: bool, template_only: bool) -> None:
    """Say what MODEL is, what memory it needs, and whether it will run here.

    MODEL is as for serve: an alias, a path, or a model on the hub. Only headers are read; of a
    model that is not here, only they are fetched.
    """
    try:
        with TerminalProgress() as progress:
            looked = _look(model, progress)
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from error
    facts = replace(looked.facts, problem=looked.facts.problem or _template_problem(looked.facts))
    looked = msgspec.structs.replace(looked, facts=facts)
    if template_only:
        if facts.template is None:
            raise click.ClickException(f"{model} has no chat template.")
        click.echo(_harmless(facts.template))
        return
    found = describe(model, looked, outlook())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        click.echo("\n".join(_lines(found)))


def _look(model: str, progress: TerminalProgress) -> Looked:
    named = read_name(model)
    if isinstance(named, HubName):
        looked = look_at_hub(named, progress=progress)
        return _opened(looked, model)
    if isinstance(named, str):
        path = cached(ALIASES[named])
        if path is None:
            raise ModelUnavailable(f"{named} is not on this machine; 'ds4trio pull' fetches it.")
        return look_at_path(path)
    return _opened(look_at_path(resolve(model, offline=True).path), model)


def _opened(looked: Looked, model: str) -> Looked:
    """With what opening a folder finds besides; of weights it reads headers only too."""
    if looked.path is None or not looked.path.is_dir():
        return looked
    # Imported here: only this kind of model needs it.
    from ds4trio.chat.tokenizer import Tokenizer
    from ds4trio.models.load import load_model

    try:
        opened = load_model(ModelSource(model, "folder", looked.path))
        Tokenizer.load(opened.tokenizer_path)
    except ModelUnavailable as error:
        facts = replace(looked.facts, config=None, problem=str(error))
    else:
        facts = replace(
            looked.facts,
            config=opened.config,
            problem=None,
            template=opened.chat_template,
            begin_token=opened.bos_token,
            adds_begin=opened.add_bos,
        )
    return msgspec.structs.replace(looked, facts=facts)


def _template_problem(facts: Facts) -> str | None:
    """Why conversations cannot be written; None where they can, also without a template."""
    if facts.template is None:
        return None
    from ds4trio.chat.template import check_template

    try:
        check_template(facts.template)
    except ModelUnavailable as error:
        return str(error)
    return None


def position_bytes(config: ModelConfig, number_bytes: int) -> int:
    """Bytes of keys and values of one position, in all layers."""
    return config.position_size * number_bytes


def describe(model: str, looked: Looked, here: Outlook) -> dict[str, Any]:
    """All that there is to say, as ``--json`` prints it; sizes in bytes."""
    facts = looked.facts
    found: dict[str, Any] = {
        "model": model,
        "path": None if looked.path is None else str(looked.path),
        "architecture": facts.architecture,
        "parameters": facts.parameters,
        "layers": facts.layers,
        "heads": facts.heads,
        "kv_heads": facts.kv_heads,
        "head_dim": facts.head_dim,
        "vocabulary": facts.vocabulary,
        "context": facts.context,
        "format": facts.format,
        "numbers": _shares(facts),
        "size": looked.size,
        "license": facts.license,
        "template": facts.template,
        "end_tokens": facts.end_tokens,
        "begin_token": facts.begin_token,
        "adds_begin_token": facts.adds_begin,
    }
    return found | {"here": _here(facts, here)}


def _here(facts: Facts, here: Outlook) -> dict[str, Any]:
    weighed = list(_weighed(facts))
    weights = {dtype: weights_bytes(weighed, dtype) for dtype in DTYPES}
    found: dict[str, Any] = {
        "device": here.device,
        "dtype": here.dtype,
        "memory": here.memory.total,
        "available": here.memory.available,
        "weights": weights[here.dtype],
        "weights_by_dtype": weights,
        "kv_bytes_per_1000_tokens": None,
        "context": None,
        "kv_bytes_of_context": None,
        "kv_memory": None,
        "runs": False,
        "problem": facts.problem,
    }
    if facts.config is None or facts.problem is not None:
        return found
    position = position_bytes(facts.config, here.cache_bytes)
    found["kv_bytes_per_1000_tokens"] = 1000 * position
    try:
        plan = plan_memory(
            total=here.memory.total,
            available=here.memory.available,
            weights=weights[here.dtype],
            position_bytes=position,
            model_context=facts.config.context_length,
            shared=here.shared,
        )
    except ModelUnavailable as error:
        return found | {"problem": str(error)}
    return found | {
        "context": plan.context,
        "kv_bytes_of_context": plan.context * position,
        "kv_memory": plan.kv_memory,
        "runs": True,
    }


def _weighed(facts: Facts) -> list[TensorFact]:
    """Tensors as the engine will have them; those of a quantised folder are packed in the file."""
    if facts.config is None or facts.format == "gguf":
        return list(facts.tensors.values())
    return [TensorFact("", shape) for shape in tensor_shapes(facts.config).values()]


def _shares(facts: Facts) -> dict[str, float]:
    """By kind of number, which part of all elements has it; the largest first."""
    counts: Counter[str] = Counter()
    for tensor in facts.tensors.values():
        counts[tensor.kind] += tensor.elements
    whole = max(counts.total(), 1)
    return {kind: round(count / whole, 4) for kind, count in counts.most_common()}


def _lines(found: dict[str, Any]) -> list[str]:
    rows = [
        ("architecture", found["architecture"]),
        ("parameters", _number(found["parameters"])),
        ("layers", _shape(found)),
        ("vocabulary", _tokens(found["vocabulary"])),
        ("context", _tokens(found["context"])),
        ("files", f"{found['format']}, {size_text(found['size'])}: {_kinds(found['numbers'])}"),
        ("licence", found["license"]),
        ("template", _template(found["template"])),
        ("ends with", ", ".join(found["end_tokens"]) or None),
        ("begins with", _begins(found)),
    ]
    lines = [_harmless(found["model"])]
    for name, value in rows:
        text = _harmless("not said" if value is None else str(value)).splitlines() or [""]
        lines += [f"  {name:<13} {text[0]}", *(f"  {'':<13} {line}" for line in text[1:])]
    return [*lines, *_memory_lines(found["here"])]


def _memory_lines(here: dict[str, Any]) -> list[str]:
    others = ", ".join(
        f"{dtype} {size_text(size)}"
        for dtype, size in here["weights_by_dtype"].items()
        if dtype != here["dtype"]
    )
    lines = [
        f"memory here ({here['device']}, {here['dtype']})",
        f"  {'weights':<13} {size_text(here['weights'])} (as {others})",
    ]
    if here["kv_bytes_per_1000_tokens"] is not None:
        lines.append(
            f"  {'keys, values':<13} {size_text(here['kv_bytes_per_1000_tokens'])} for 1,000 tokens"
        )
    if here["runs"]:
        longest = size_text(here["kv_bytes_of_context"])
        both = size_text(here["weights"] + here["kv_memory"])
        lines += [
            f"  {'':<13} {longest} for {here['context']:,} tokens, the context by default",
            f"  {'':<13} {size_text(here['kv_memory'])} for all conversations by default",
            f"  {'sum':<13} {both} of {size_text(here['memory'])}, "
            f"{size_text(here['available'])} of them free",
            "It will run here.",
        ]
    else:
        lines += [
            f"  {'machine':<13} {size_text(here['memory'])}, "
            f"{size_text(here['available'])} of them free",
            f"It will not run here. {_harmless(here['problem'] or '')}",
        ]
    return lines


def _shape(found: dict[str, Any]) -> str | None:
    if found["layers"] is None:
        return None
    text = str(found["layers"])
    if found["heads"] is not None:
        text += f", {found['heads']} heads"
        text += f" of {found['head_dim']}" if found["head_dim"] is not None else ""
    if found["kv_heads"] not in (None, found["heads"]):
        text += f", {found['kv_heads']} for keys and values"
    return text


def _number(count: int) -> str:
    for size, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,}"


def _tokens(count: int | None) -> str | None:
    return None if count is None else f"{count:,} tokens"


def _kinds(shares: dict[str, float]) -> str:
    shown = [f"{kind} {share:.0%}" for kind, share in shares.items() if share >= 0.005]
    return ", ".join(shown or shares)


def _template(template: str | None) -> str:
    if template is None:
        return "none; conversations cannot be written for it as it expects them"
    lines = [line[:WIDTH] for line in template.splitlines()[:TEMPLATE_LINES]]
    return "\n".join([f"{len(template):,} characters (--template prints them)", *lines])


def _begins(found: dict[str, Any]) -> str | None:
    if found["begin_token"] is None:
        return None
    where = {
        True: "before every prompt",
        False: "where the template writes it",
        None: "where the template writes it, or the tokenizer adds it",
    }
    return f"{found['begin_token']} {where[found['adds_begin_token']]}"


def _harmless(text: str) -> str:
    """A model's own texts are never trusted with the terminal."""
    return Sanitiser().feed(text)
