"""All that is needed to make a runner, as plain data that another process can be given."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ds4trio.errors import ModelUnavailable
from ds4trio.models.load import load_model
from ds4trio.models.resolve import ModelSource
from ds4trio.settings import Settings

if TYPE_CHECKING:
    from ds4trio.engine.runner import Runner

__all__ = ["RunnerSpec"]


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """Which model, and how it is to run. ``Runner`` has the meaning of the fields it shares."""

    source: ModelSource
    device: str = "auto"
    dtype: str = "auto"
    batch_invariant: bool = False
    context_length: int | None = None
    kv_memory: int | None = None
    page_size: int = 16
    pages: int | None = None
    threads: int | None = None
    log_level: str = "info"
    adapters: tuple[tuple[str, Path], ...] = ()

    @classmethod
    def of(cls, settings: Settings, source: ModelSource) -> RunnerSpec:
        """What the settings say, for files that were found."""
        return cls(
            source=source,
            device=settings.device,
            dtype=settings.dtype,
            batch_invariant=settings.batch_invariant,
            context_length=settings.ctx or None,
            kv_memory=settings.kv_memory_bytes,
            page_size=settings.page_size,
            threads=settings.threads or None,
            log_level=settings.log_level,
            adapters=settings.adapters,
        )

    def load(self) -> Runner:
        """Read the weights and make the runner. Blocks for seconds.

        Raises:
            ModelUnavailable: as ``load_model`` and ``Runner`` do; or there is not enough memory.
        """
        model = load_model(self.source)  # what is wrong with files is said soon
        from ds4trio.chat.grammar_tokens import load_grammar_tokens
        from ds4trio.engine.runner import Runner
        from ds4trio.models.lora import open_adapter

        try:
            return Runner(
                model.config,
                model.weights,
                device=self.device,
                dtype=self.dtype,
                batch_invariant=self.batch_invariant,
                context_length=self.context_length,
                kv_memory=self.kv_memory,
                page_size=self.page_size,
                pages=self.pages,
                threads=self.threads,
                keep_in=model.folder,
                grammar_tokens=functools.partial(
                    load_grammar_tokens,
                    model.tokenizer_path,
                    size=model.config.vocab_size,
                    ends=frozenset(model.config.eos_token_ids),
                ),
                adapters=[open_adapter(name, path, model.config) for name, path in self.adapters],
            )
        except MemoryError as error:
            raise ModelUnavailable(
                f"There is not enough memory ({error}); a smaller --kv-memory or model needs less."
            ) from error
