"""One model, its KV cache, and the transaction in which sequences advance."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ds4trio.engine.attention import Span, make_attention
from ds4trio.engine.decoder import Decoder
from ds4trio.engine.kv_cache import KVCache, spare_memory
from ds4trio.engine.linear import activation_dtype
from ds4trio.engine.pages import PagePool
from ds4trio.engine.prefix_cache import PrefixCache
from ds4trio.engine.sampler import Draw, sample
from ds4trio.engine.step import (
    EngineInfo,
    Evaluated,
    Refused,
    SampledToken,
    SamplingParams,
    StepItem,
    StepResult,
)
from ds4trio.errors import (
    ContextLengthExceeded,
    EngineMisuse,
    InternalError,
    ModelUnavailable,
    ServerBusy,
    TokenOutOfVocabulary,
    WireError,
)
from ds4trio.models.config import ModelConfig

__all__ = ["Engine"]


@dataclass(slots=True)
class _Sequence:
    """What is committed of one sequence.

    Attributes:
        sampling: how it draws.
        tokens: ids of the positions whose keys and values are in the cache.
        pending: the token sampled last, not yet evaluated; None where there is none.
        root: digest that its beginnings are named from.
        digests: names of its full pages, in order.
    """

    sampling: SamplingParams
    root: bytes
    tokens: array[int] = field(default_factory=lambda: array("q"))
    pending: int | None = None
    digests: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Work:
    """An accepted item: where it stands in the batch, and the tokens it evaluates."""

    place: int
    item: StepItem
    tokens: Sequence[int]


class Engine:
    """Evaluates batches of sequences on one device. Blocking, and used by one thread at a time.

    Args:
        config: shape of the model.
        weights: its tensors by Hugging Face name; each is read once.
        device: ``auto`` (cuda, mps, cpu, the first there is) or a torch device.
        dtype: ``auto`` (bfloat16 on cuda, float16 on mps, float32 on cpu), ``float32``,
            ``bfloat16``, ``float16``, or ``int8`` on the CPU.
        context_length: positions a sequence can hold, at most the model's own; None for those.
        kv_memory: bytes for keys and values, taken from the system as they come into use; None for
            what the machine can spare.
        page_size: positions in a page. Multiples of 16 keep a row's bits the same in any company.
        threads: CPU threads of an operation, for the whole process; None leaves torch's choice.
        prefix_cache: keep full pages for sequences that begin with the same tokens.

    Raises:
        ModelUnavailable: the weights do not fit the config, the device or dtype is unknown or not
            supported, or the memory holds not a single page.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        device: str = "auto",
        dtype: str = "auto",
        context_length: int | None = None,
        kv_memory: int | None = None,
        page_size: int = 16,
        threads: int | None = None,
        prefix_cache: bool = True,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        place = _device(device)
        kind = _dtype(dtype, place)
        context = min(context_length or config.context_length, config.context_length)
        numbers = activation_dtype(kind)
        with torch.inference_mode():
            self._decoder = Decoder(config, weights, dtype=kind, device=place)
            memory = spare_memory(place) if kv_memory is None else kv_memory
            pages = KVCache.pages_within(memory, config, page_size=page_size, dtype=numbers)
            self._attention = make_attention(
                config,
                context_length=context,
                pages=pages,
                page_size=page_size,
                dtype=kind,
                device=place,
            )
        self._prefixes = PrefixCache(page_size)
        self._pool = PagePool(pages, self._prefixes.forget)
        self._prefix_cache = prefix_cache
        self._sequences: dict[int, _Sequence] = {}
        self._device = place
        self.info = EngineInfo(
            vocab_size=config.vocab_size,
            context_length=context,
            page_size=page_size,
            total_pages=pages,
            device=str(place),
            dtype=kind,
        )

    @property
    def free_pages(self) -> int:
        """Pages of the KV cache that no sequence holds."""
        return self._pool.free

    def free_pages_without(self, sequences: Collection[int]) -> int:
        """Pages that no sequence would hold if these were closed."""
        return self._pool.free_without(sequences)

    def open(self, sequence: int, sampling: SamplingParams, *, cache_salt: str = "") -> None:
        """Begin an empty sequence.

        Args:
            sequence: any id that is not in use.
            sampling: how it draws.
            cache_salt: it shares pages only with sequences of the same salt.

        Raises:
            EngineMisuse: the id is in use.
            TokenOutOfVocabulary: a logit bias names a token that the model does not have.
        """
        for token in sampling.logit_bias:
            if not 0 <= token < self.info.vocab_size:
                raise TokenOutOfVocabulary(
                    f"logit_bias names token {token}; the vocabulary ends at "
                    f"{self.info.vocab_size - 1}",
                    param="logit_bias",
                )
        self._pool.open(sequence)
        self._sequences[sequence] = _Sequence(sampling, PrefixCache.root(cache_salt))

    def reuse(self, sequence: int, tokens: Sequence[int]) -> int:
        """Take over what is cached of a beginning, for a sequence that has evaluated nothing.

        Args:
            sequence: open and empty.
            tokens: what it will evaluate. The last one is always left to do, since its logits are
                wanted.

        Returns:
            How many of the first tokens count as evaluated now, a multiple of the page size.
        """
        state = self._sequences[sequence]
        if state.tokens or not self._prefix_cache:
            return 0
        pages, state.digests = self._prefixes.find(state.root, tokens[:-1])
        self._pool.share(sequence, pages)
        state.tokens.extend(tokens[: len(pages) * self.info.page_size])
        return len(state.tokens)

    def close(self, sequence: int) -> None:
        """Forget a sequence and free its pages. Raises EngineMisuse when it is unknown."""
        self._pool.close(sequence)
        del self._sequences[sequence]

    def length(self, sequence: int) -> int:
        """Positions that are evaluated and committed. Raises EngineMisuse when it is unknown."""
        if sequence not in self._sequences:
            raise EngineMisuse(f"sequence {sequence} is not open")
        return len(self._sequences[sequence].tokens)

    @torch.inference_mode()
    def eval_batch(self, items: Sequence[StepItem]) -> StepResult:
        """Evaluate a step: every item that passes the checks, or none.

        An item with tokens evaluates those; a token that the sequence sampled before and that was
        not evaluated yet is forgotten, they take its place. An item without tokens evaluates that
        sampled token. An item that fails a check is refused with an error of its own, before any
        tensor moves, and its sequence stays as it was.

        Returns:
            One outcome per item, in their order.

        Raises:
            FloatingPointError: logits are not finite.
            Exception: whatever the device raised. In both cases every sequence is as it was before
                the call, pages included.
        """
        began = time.perf_counter()
        outcomes: dict[int, Evaluated | Refused] = {}
        accepted: list[_Work] = []
        grown: list[tuple[int, int]] = []
        try:
            seen: set[int] = set()
            for place, item in enumerate(items):
                error, tokens = self._examine(item, seen)
                seen.add(item.sequence)
                if error is None:
                    grown.append((item.sequence, self._grow(item.sequence, len(tokens))))
                    accepted.append(_Work(place, item, tokens))
                else:
                    outcomes[place] = Refused(item.sequence, error)
            sampled = self._evaluate(accepted) if accepted else []
        except BaseException:
            for sequence, pages in reversed(grown):
                self._pool.shrink(sequence, pages)
            # Whatever went wrong may have touched pages that others would share.
            self._prefixes.clear()
            self._pool.keep_nothing()
            raise
        for work, token in zip(accepted, sampled, strict=True):
            state = self._sequences[work.item.sequence]
            state.tokens.extend(work.tokens)
            state.pending = None if token is None else token.token
            self._name_pages(work.item.sequence, state)
            outcomes[work.place] = Evaluated(work.item.sequence, token)
        return StepResult(
            outcomes=tuple(outcomes[place] for place in range(len(items))),
            free_pages=self._pool.free,
            seconds=time.perf_counter() - began,
        )

    def _name_pages(self, sequence: int, state: _Sequence) -> None:
        """Let others find the pages that have become full."""
        if not self._prefix_cache:
            return
        size = self.info.page_size
        table = self._pool.table(sequence)
        for number in range(len(state.digests), len(state.tokens) // size):
            before = state.digests[-1] if state.digests else state.root
            page_tokens = state.tokens[number * size : (number + 1) * size]
            state.digests.append(PrefixCache.extend(before, page_tokens))
            if self._prefixes.remember(state.digests[-1], table[number]):
                self._pool.keep(table[number])

    def _examine(self, item: StepItem, seen: set[int]) -> tuple[WireError | None, Sequence[int]]:
        """The checks of one item: what is wrong with it, and the tokens it evaluates."""
        state = self._sequences.get(item.sequence)
        if state is None:
            return InternalError(f"sequence {item.sequence} is not open in this engine"), ()
        if item.sequence in seen:
            return InternalError(f"sequence {item.sequence} is twice in one batch"), ()
        tokens: Sequence[int] = item.tokens
        if not tokens:
            if state.pending is None:
                return InternalError(f"sequence {item.sequence} has no token to evaluate"), ()
            tokens = (state.pending,)
        vocabulary = self.info.vocab_size
        if min(tokens) < 0 or max(tokens) >= vocabulary:
            wrong = next(t for t in tokens if not 0 <= t < vocabulary)
            message = f"token {wrong} is not in the vocabulary of {vocabulary}"
            return TokenOutOfVocabulary(message), ()
        end = len(state.tokens) + len(tokens)
        if end > self.info.longest_sequence:
            return ContextLengthExceeded(
                f"{end} tokens do not fit: a sequence can hold {self.info.longest_sequence}"
            ), ()
        if self._pages_missing(item.sequence, len(tokens)) > self._pool.free:
            return ServerBusy("the KV cache is full", retry_after=1), ()
        return None, tokens

    def _pages_missing(self, sequence: int, more: int) -> int:
        end = len(self._sequences[sequence].tokens) + more
        return self.info.pages_for(end) - len(self._pool.table(sequence))

    def _grow(self, sequence: int, more: int) -> int:
        """Give a sequence the pages for so many further positions; how many pages those were."""
        pages = self._pages_missing(sequence, more)
        self._pool.grow(sequence, pages)
        return pages

    def _evaluate(self, batch: list[_Work]) -> list[SampledToken | None]:
        """Run the network and the sampler. Writes only to positions that are not committed."""
        spans = [
            Span(
                self._pool.table(work.item.sequence),
                len(self._sequences[work.item.sequence].tokens),
                len(work.tokens),
            )
            for work in batch
        ]
        order = self._attention.order(spans)
        rows: list[int] = []
        drawing: list[int] = []
        wanted: list[int] = []
        for i in order:
            rows.extend(batch[i].tokens)
            if batch[i].item.sample:
                drawing.append(i)
                wanted.append(len(rows) - 1)
        plan = self._attention.plan([spans[i] for i in order])
        every = len(wanted) == len(rows)
        logits = self._decoder(
            torch.tensor(rows, dtype=torch.int64).to(self._device),
            plan,
            self._attention,
            None if every else torch.tensor(wanted, dtype=torch.int64).to(self._device),
        )
        sampled: list[SampledToken | None] = [None] * len(batch)
        if drawing:
            tokens = sample(logits, [self._draw(batch[i]) for i in drawing])
            for i, token in zip(drawing, tokens, strict=True):
                sampled[i] = token
        return sampled

    def _draw(self, work: _Work) -> Draw:
        state = self._sequences[work.item.sequence]
        return Draw(state.sampling, state.tokens + array("q", work.tokens))


def _device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelUnavailable(f"device {name!r} cannot be used: {reason}") from error


def _dtype(name: str, device: torch.device) -> str:
    if name != "auto":
        return name
    return {"cuda": "bfloat16", "mps": "float16"}.get(device.type, "float32")
