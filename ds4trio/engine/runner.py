"""The part of an engine that has tensors: carries out commands, one after the other."""

from __future__ import annotations

import itertools
import logging
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from llguidance import LLTokenizer

from ds4trio.engine.adapters import ActiveAdapters
from ds4trio.engine.attention import PagedAttention, Span, cache_dtype, make_attention
from ds4trio.engine.decoder import Decoder
from ds4trio.engine.device import find_device, find_dtype
from ds4trio.engine.grammar import Bound, Grammars, Mask
from ds4trio.engine.graphs import CudaRecorder, RecordedSteps
from ds4trio.engine.invariance import cost_of_invariance, require_invariance
from ds4trio.engine.linear import ROUNDED, activation_dtype, is_native
from ds4trio.engine.logprobs import Scored, score
from ds4trio.engine.room import plan_room
from ds4trio.engine.sampler import Bias, Draw, load_kernels, sample
from ds4trio.engine.step import Command, EngineInfo, Ran, Row, SampledToken
from ds4trio.engine.work import RunningSequence, Work
from ds4trio.errors import ModelUnavailable, StepVoid
from ds4trio.models.config import ModelConfig
from ds4trio.models.lora import Adapter

__all__ = ["Runner"]

_log = logging.getLogger(__name__)


class Runner:
    """One model on one device, with its KV cache. Blocking, and used by one thread at a time.

    It trusts its commands: who may use which page, and what fits, the ledger has seen to.

    Args:
        config: shape of the model.
        weights: its tensors by Hugging Face name; each is read once.
        device: ``auto`` (cuda, mps, cpu, the first there is) or a torch device.
        dtype: ``auto`` (bfloat16 on cuda, float16 on mps; on a CPU w8a16 where it has instructions
            for it, else float32), ``float32``, ``bfloat16``, ``float16``, or on a CPU ``w8a16`` or
            ``int8``.
        batch_invariant: a row has the same bits in any company, in every dtype and on every device,
            also where that costs time; it is tried out at once.
        context_length: positions a sequence can hold, at most the model's own; None for those.
        kv_memory: bytes for keys and values, taken from the system as they come into use; None for
            what the machine can spare.
        page_size: positions in a page. Multiples of 16 keep a row's bits the same in any company.
        pages: how many pages there are, in place of what ``kv_memory`` says.
        threads: CPU threads of an operation, for the whole process; None leaves torch's choice.
        keep_in: folder for the packed form of exactly these weights; None keeps it nowhere.
        graphs: record decode steps and replay them, where attention has kernels for CUDA.
        adapters: that sequences may have.
        grammar_tokens: makes the vocabulary for grammars, when the first one comes; without it
            every sequence that has a grammar fails.

    Raises:
        ModelUnavailable: the weights do not fit the config, the device or dtype is unknown or not
            supported, the memory holds not a single page, or batch invariance does not hold there.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        device: str = "auto",
        dtype: str = "auto",
        batch_invariant: bool = False,
        context_length: int | None = None,
        kv_memory: int | None = None,
        page_size: int = 16,
        pages: int | None = None,
        threads: int | None = None,
        keep_in: Path | None = None,
        graphs: bool = True,
        adapters: Sequence[Adapter] = (),
        grammar_tokens: Callable[[], LLTokenizer] | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        place = find_device(device)
        kind = find_dtype(dtype, place)
        numbers = cache_dtype(kind, place, batch_invariant=batch_invariant)
        if config.compressed is not None:
            numbers = activation_dtype(kind)
        context = min(context_length or config.context_length, config.context_length)
        if pages is None:
            room = plan_room(
                config,
                place,
                dtype=kind,
                numbers=numbers,
                page_size=page_size,
                kv_memory=kv_memory,
                context_length=context_length,
            )
            pages = room.kv_memory // (config.position_size * numbers.itemsize * page_size)
            context = room.context
        self._adapters = ActiveAdapters()
        with torch.inference_mode():
            # Other forms are made as fast as they are read.
            packed = keep_in / "rounded.packed" if keep_in and kind in ROUNDED else None
            self.decoder = Decoder(
                config,
                weights,
                dtype=kind,
                device=place,
                batch_invariant=batch_invariant,
                keep_in=packed,
                adapters=adapters,
                active=self._adapters,
            )
            try:
                self._attention = make_attention(
                    config,
                    context_length=context,
                    pages=pages,
                    page_size=page_size,
                    dtype=kind,
                    device=place,
                    batch_invariant=batch_invariant,
                )
            except (MemoryError, RuntimeError) as error:  # torch has no type of its own on a CPU
                reason = str(error).splitlines()[0]
                raise ModelUnavailable(
                    f"memory for keys and values of {pages * page_size} positions cannot be had: "
                    f"{reason}; a smaller --kv-memory may fit"
                ) from error
            self._recorded: RecordedSteps | None = None
            recordable = graphs and config.experts is None  # experts are chosen on the host
            if recordable and isinstance(self._attention, PagedAttention) and self._attention.paged:
                self._recorded = RecordedSteps(
                    self.decoder,
                    self._attention,
                    vocabulary=config.vocab_size,
                    record=CudaRecorder(place),
                )
        self._sequences: dict[int, RunningSequence] = {}
        self._grammars = Grammars(grammar_tokens, config.vocab_size)
        self._broken = False
        self._device = place
        load_kernels(place)
        # On a CPU the sampler's sums run row by row as they are.
        self._row_by_row = batch_invariant and place.type != "cpu"
        self.info = EngineInfo(
            vocab_size=config.vocab_size,
            context_length=context,
            page_size=page_size,
            total_pages=pages,
            device=str(place),
            dtype=kind,
            adapters=tuple(adapter.name for adapter in adapters),
        )
        if batch_invariant:
            _log.info("--batch-invariant: %s", cost_of_invariance(kind, place))
            if not is_native(kind, place):
                require_invariance(self.decoder, self._attention, self.info, place)

    def prepare_grammar(self, grammar: str) -> None:
        """Begin to compile it. Returns at once; any thread may call it."""
        self._grammars.begin(grammar)

    @torch.inference_mode()
    def step(self, command: Command) -> Ran:
        """Carry a command out: all of its rows, or none.

        Raises:
            StepVoid: a command before it failed, and this one is no reset.
            FloatingPointError: logits are not finite.
            Exception: whatever the device raised. In both cases every sequence has the tokens and
                pages that it had before.
        """
        began = time.perf_counter()
        if command.reset:
            self._sequences.clear()
        elif self._broken:
            raise StepVoid("a step before it failed")
        self._broken = True  # until it has succeeded
        for sequence in command.closes:
            del self._sequences[sequence]
        for new in command.opens:
            self._sequences[new.sequence] = RunningSequence(
                new.sampling,
                new.tokens[:],
                list(new.pages),
                new.pending,
                Bias.of(new.sampling),
                new.adapter,
                bound=self._grammars.bind(new.sampling.grammar) if new.sampling.grammar else None,
            )
        batch = [self._work(row) for row in command.rows]
        faults: dict[int, str] = {}
        prompts: dict[int, tuple[SampledToken, ...]] = {}
        sampled = self._evaluate(batch, faults, prompts) if batch else []
        for work, tokens in zip(batch, sampled, strict=True):
            certain = len(work.tokens) - work.guessed
            work.sequence.tokens.extend(work.tokens[:certain])
            work.sequence.tokens.extend(token.token for token in tokens[:-1])
            work.sequence.pages.extend(work.row.pages)
            work.sequence.pending = tokens[-1].token if tokens else None
        self._broken = False
        return Ran(
            sampled=tuple(sampled),
            seconds=time.perf_counter() - began,
            guessed=tuple(work.guessed for work in batch),
            faults=faults,
            prompts=prompts,
        )

    def _work(self, row: Row) -> Work:
        sequence = self._sequences[row.sequence]
        tokens: Sequence[int] = row.tokens
        guesses: Sequence[int] = ()
        if not tokens:
            assert sequence.pending is not None
            tokens = (sequence.pending,)
            if row.draft and row.sample:
                guesses = sequence.guesses(sequence.pending, row.draft)
                tokens = (*tokens, *guesses)
        span = Span([*sequence.pages, *row.pages], len(sequence.tokens), len(tokens))
        return Work(row, sequence, tokens, len(guesses), span)

    def _evaluate(
        self,
        batch: Sequence[Work],
        faults: dict[int, str],
        prompts: dict[int, tuple[SampledToken, ...]],
    ) -> list[tuple[SampledToken, ...]]:
        """Run the network and the sampler. Writes only to positions that are not committed, those
        of guesses among them: what comes next is written over guesses that did not hold.

        Args:
            faults: gets the rows whose grammar has failed. They draw as if they had none.
            prompts: gets what ``Ran.prompts`` is to say.

        Returns:
            The tokens that came of each row.
        """
        spans = [work.span for work in batch]
        order = self._attention.order(spans)
        rows: list[int] = []
        draws = [work.draws for work in batch]
        wanted: list[int] = []
        scored: list[Scored] = []
        for i in order:
            work = batch[i]
            own = Scored.of(i, len(rows), work.row, work.sequence.sampling, work.span.start)
            if own is not None:
                scored.append(own)
            rows.extend(work.tokens)
            wanted.extend(range(len(rows) - len(draws[i]), len(rows)))
        masks = self._masks(batch, draws)
        self._adapters.groups = self._adapted([batch[i] for i in order])
        logits = self._logits(rows, [spans[i] for i in order], wanted, scored, prompts)
        sampled: list[tuple[SampledToken, ...]] = [()] * len(batch)
        for i, found in masks():
            if isinstance(found, Exception):
                faults[i] = str(found) or type(found).__name__
            else:
                draws[i] = [
                    replace(draw, mask=mask) for draw, mask in zip(draws[i], found, strict=True)
                ]
        if wanted:
            every = [draw for i in order for draw in draws[i]]
            drawn = iter(sample(logits, every, row_by_row=self._row_by_row))
            for i in order:
                sampled[i] = batch[i].held(list(itertools.islice(drawn, len(draws[i]))))
        return sampled

    def _masks(
        self, batch: Sequence[Work], draws: Sequence[Sequence[Draw]]
    ) -> Callable[[], Iterable[tuple[int, list[Mask] | Exception]]]:
        """Begin to work out what the rows' grammars allow, while the network runs.

        Returns:
            What waits for it: for each row that has a grammar and draws, one mask per draw, or why
            there is none.
        """
        rows: list[int] = []
        wanted: list[tuple[Bound, array[int], int]] = []
        for i, (work, own) in enumerate(zip(batch, draws, strict=True)):
            if work.sequence.bound is not None and own:
                output = own[-1].history[own[-1].params.prompt_length :]
                rows.append(i)
                wanted.append((work.sequence.bound, output, len(own) - 1))
        if not rows:
            return tuple
        coming = self._grammars.masks(wanted)
        return lambda: zip(rows, coming.result(), strict=True)

    def _adapted(self, batch: Sequence[Work]) -> list[tuple[str, torch.Tensor]]:
        """The rows of each adapter in a step of these."""
        rows: dict[str, list[int]] = {}
        row = 0
        for work in batch:
            if work.sequence.adapter:
                own = rows.setdefault(work.sequence.adapter, [])
                own.extend(range(row, row + len(work.tokens)))
            row += len(work.tokens)
        return [
            (name, torch.tensor(own, dtype=torch.int64).to(self._device))
            for name, own in rows.items()
        ]

    def _logits(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        wanted: Sequence[int],
        scored: Sequence[Scored],
        prompts: dict[int, tuple[SampledToken, ...]],
    ) -> torch.Tensor:
        """Logits of the wanted rows of a step whose spans are in attention's order, and what those
        of the scored rows say."""
        if self._device.type == "cuda":
            # A thread's own device, and the next step may run in another thread.
            torch.cuda.set_device(self._device)
        chosen = None
        if len(wanted) < len(tokens):
            chosen = torch.tensor(wanted, dtype=torch.int64).to(self._device)
        recorded = None if self._adapters.groups else self._recorded
        if recorded is not None and not scored and recorded.suits(spans):
            logits = recorded(tokens, spans)
            return logits if chosen is None else logits.index_select(0, chosen)
        rows = torch.tensor(tokens, dtype=torch.int64).to(self._device)
        plan = self._attention.plan(spans)
        if not scored:
            return self.decoder(rows, plan, self._attention, chosen)
        hidden = self.decoder.hidden(rows, plan, self._attention)
        prompts |= score(
            hidden,
            self.decoder.logits,
            scored,
            vocabulary=self.info.vocab_size,
            row_by_row=self._row_by_row,
        )
        return self.decoder.logits(hidden if chosen is None else hidden.index_select(0, chosen))
