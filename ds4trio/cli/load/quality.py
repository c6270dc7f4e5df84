"""``ds4trio bench --quality``: what a number format costs, on a text and without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ds4trio.errors import ModelUnavailable
from ds4trio.models.progress import Progress
from ds4trio.settings import Settings

__all__ = ["measure_quality", "quality_report"]

WINDOW: Final = 512
"""Tokens that are evaluated together: enough for attention to matter, and quick."""
LONGEST_TOKEN: Final = 64
"""Characters, about. Of a book only so much is tokenised as may be needed."""


def measure_quality(
    settings: Settings, file: Path, tokens: int, progress: Progress
) -> dict[str, Any]:
    """Evaluate a text in float32 and in the settings' dtype. Blocks for a while.

    Args:
        settings: model, device, dtype (not ``auto``) and threads.
        tokens: of the text to use, from its beginning.

    Returns:
        The figures, and what they are of, ready for JSON.

    Raises:
        ModelUnavailable: the model cannot be found or read, or not on that device or in that dtype.
        ValueError: the text is too short.
    """
    import torch

    from ds4trio.chat.tokenizer import Tokenizer
    from ds4trio.engine.quality import compare, logits_of, windows
    from ds4trio.models.load import load_model
    from ds4trio.models.resolve import resolve

    with file.open(encoding="utf-8", errors="replace") as opened:
        text = opened.read(tokens * LONGEST_TOKEN)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = load_model(resolve(settings.model, progress=progress), progress=progress)
    tokenizer = Tokenizer.load(model.tokenizer_path)
    first = tokenizer.token_id(model.bos_token) if model.add_bos and model.bos_token else None
    longest = min(WINDOW, model.config.context_length)
    texts = list(
        windows(tokenizer.encode(text, special=False), size=longest, limit=tokens, first=first)
    )
    device = _device(settings.device)
    reference, candidate = (
        logits_of(
            model.config,
            model.weights,
            dtype=dtype,
            device=device,
            longest=longest,
            batch_invariant=settings.batch_invariant,
        )
        for dtype in ("float32", settings.dtype)
    )

    def told() -> Iterator[list[int]]:
        for number, piece in enumerate(texts):
            progress("evaluating the text twice", number, len(texts))
            yield piece
        progress("evaluating the text twice", len(texts), len(texts))

    found = compare(reference, candidate, told())
    return {
        "model": model.name,
        "dtype": settings.dtype,
        "device": str(device),
        "text": file.name,
        "tokens": found.positions,
        "perplexity": found.perplexity,
        "reference_perplexity": found.reference_perplexity,
        "mean_kl": found.divergence,
        "top_1_agreement": found.agreement,
    }


def quality_report(found: dict[str, Any]) -> str:
    """As text that ends in a line break."""
    reference = found["reference_perplexity"]
    return (
        f"{found['model']} in {found['dtype']} on {found['device']}, against float32: "
        f"{found['tokens']} tokens of {found['text']}\n"
        f"perplexity       {found['perplexity']:.3f} (float32 {reference:.3f})\n"
        f"mean KL          {found['mean_kl']:.5f} nats\n"
        f"top-1 agreement  {found['top_1_agreement']:.4f}\n"
    )


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelUnavailable(f"device {name!r} cannot be used: {reason}") from error
