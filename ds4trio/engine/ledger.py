"""The books of an engine: who has which tokens on which pages, and what steps in flight change.

No tensors here. A step is prepared from the books as they will be when those before it have
succeeded, so that it can be handed to the runner while they still run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ds4trio.engine.account import Account
from ds4trio.engine.interface import RunnerLike
from ds4trio.engine.pages import PagePool
from ds4trio.engine.prefix_cache import PrefixCache
from ds4trio.engine.step import (
    Command,
    EngineInfo,
    Evaluated,
    Opening,
    Ran,
    Refused,
    Row,
    SamplingParams,
    Step,
    StepItem,
    StepResult,
)
from ds4trio.errors import (
    EngineMisuse,
    GrammarFailed,
    InternalError,
    ServerBusy,
    TokenOutOfVocabulary,
    WireError,
)

__all__ = ["Ledger"]


@dataclass(frozen=True, slots=True)
class _Work:
    """An accepted item, the account it was accepted for, and how many pages that got for it."""

    item: StepItem
    account: Account
    pages: int


class Ledger:
    """Implements ``EngineLike`` over a runner. ``eval_batch`` is a whole step in one call.

    Args:
        runner: carries the steps out.
        prefix_cache: keep full pages for sequences that begin with the same tokens.
    """

    def __init__(self, runner: RunnerLike, *, prefix_cache: bool = True) -> None:
        self.info: EngineInfo = runner.info
        self._runner = runner
        self._prefixes = PrefixCache(self.info.page_size)
        self._pool = PagePool(self.info.total_pages, self._prefixes.forget)
        self._prefix_cache = prefix_cache
        self._sequences: dict[int, Account] = {}
        self._prepared = 0
        self._in_flight: dict[int, list[_Work]] = {}  # by the numbers of their commands
        # What the runner has not been told yet.
        self._reset = True
        self._closed: list[int] = []
        self._opened: dict[int, None] = {}

    @property
    def ready(self) -> bool:
        """False from the death of the runner until it has been started again."""
        return self._runner.ready

    @property
    def free_pages(self) -> int:
        """Pages of the KV cache that no sequence holds."""
        return self._pool.free

    def free_pages_without(self, sequences: Collection[int]) -> int:
        """Pages that no sequence would hold if these were closed."""
        return self._pool.free_without(sequences)

    def open(
        self, sequence: int, sampling: SamplingParams, *, cache_salt: str = "", adapter: str = ""
    ) -> None:
        """Begin an empty sequence.

        Args:
            sequence: any id that is not in use.
            sampling: how it draws.
            cache_salt: it shares pages only with sequences of the same salt and adapter.
            adapter: the name of the one it is evaluated with; empty for none.

        Raises:
            EngineMisuse: the id is in use.
            TokenOutOfVocabulary: a logit bias names a token that the model does not have.
            InternalError: there is no such adapter.
        """
        if adapter and adapter not in self.info.adapters:
            raise InternalError(f"the engine has no adapter {adapter!r}")
        for token in sampling.logit_bias:
            if not 0 <= token < self.info.vocab_size:
                raise TokenOutOfVocabulary(
                    f"logit_bias names token {token}; the vocabulary ends at "
                    f"{self.info.vocab_size - 1}",
                    param="logit_bias",
                )
        self._pool.open(sequence)
        self._sequences[sequence] = Account(
            sampling, PrefixCache.root(cache_salt, adapter), adapter
        )
        self._opened[sequence] = None

    def reuse(self, sequence: int, tokens: Sequence[int]) -> int:
        """Take over what is cached of a beginning. It may be asked for again while the sequence
        waits to be evaluated: others may have put more into the cache.

        Args:
            sequence: open, with nothing evaluated but what came from the cache.
            tokens: what it will have evaluated, from the first. The last one is always left to do,
                since its logits are wanted.

        Returns:
            How many of the first tokens count as evaluated now, a multiple of the page size; 0 for
            a sequence that has evaluated something itself, or that tells of its prompt.
        """
        account, size = self._sequences[sequence], self.info.page_size
        own = len(account.digests) * size
        if account.sampling.prompt_logprobs is not None:
            return 0
        if not self._prefix_cache or account.end != own or len(account.tokens) != own:
            return 0
        root = account.digests[-1] if account.digests else account.root
        pages, digests = self._prefixes.find(root, tokens[own:-1])
        if pages:
            self._pool.share(sequence, pages)
            account.cached(tokens[own : own + len(pages) * size], digests)
            if sequence not in self._opened:  # the runner knows it as it was
                self._closed.append(sequence)
                self._opened[sequence] = None
        return account.end

    def close(self, sequence: int) -> None:
        """Forget a sequence and free its pages. Raises EngineMisuse when it is unknown.

        A step in flight may still write to them. That is before any step that can give them to
        others, since steps are carried out in the order of their preparation.
        """
        self._pool.close(sequence)
        del self._sequences[sequence]
        if sequence in self._opened:
            del self._opened[sequence]
        else:
            self._closed.append(sequence)

    def length(self, sequence: int) -> int:
        """Positions that are evaluated and committed. Raises EngineMisuse when it is unknown."""
        if sequence not in self._sequences:
            raise EngineMisuse(f"sequence {sequence} is not open")
        return len(self._sequences[sequence].tokens)

    def prepare(self, items: Sequence[StepItem]) -> Step:
        """Check a step, and give its sequences their pages.

        An item with tokens evaluates those; a token that the sequence drew before and that was not
        evaluated yet is forgotten, they take its place. An item without tokens evaluates that drawn
        token. An item that fails a check is refused with an error of its own, and its sequence
        stays as it was.
        """
        opens = tuple(self._opening(sequence) for sequence in self._opened)
        work: list[_Work] = []
        rows: list[Row] = []
        refused: dict[int, Refused] = {}
        seen: set[int] = set()
        for place, item in enumerate(items):
            error = self._examine(item, seen)
            seen.add(item.sequence)
            if error is not None:
                refused[place] = Refused(item.sequence, error)
                continue
            missing = self._pages_missing(item)
            self._pool.grow(item.sequence, missing)
            table = self._pool.table(item.sequence)
            new = tuple(table[len(table) - missing :])
            rows.append(Row(item.sequence, item.tokens, new, item.sample, item.draft, item.follows))
            work.append(_Work(item, self._sequences[item.sequence], missing))
        command = Command(
            number=self._prepared,
            reset=self._reset,
            closes=tuple(self._closed),
            opens=opens,
            rows=tuple(rows),
        )
        for accepted in work:
            accepted.account.planned(accepted.item)
        step = Step(tuple(items), refused, command)
        self._in_flight[command.number] = work
        self._prepared += 1
        self._reset = False
        self._closed.clear()
        self._opened.clear()
        return step

    def run(self, step: Step) -> Ran:
        """Carry a step out. Blocks; for worker threads."""
        return self._runner.run(step.command)

    def commit(self, step: Step, ran: Ran) -> StepResult:
        """The step counts. Sequences that were closed since it was prepared are left out.

        Raises EngineMisuse unless it is the oldest one in flight.
        """
        if step.command.number != next(iter(self._in_flight), None):
            raise EngineMisuse("steps are committed in the order of their preparation")
        work = self._in_flight.pop(step.command.number)
        accepted: dict[int, Evaluated | Refused] = {}
        guesses = ran.guessed or (0,) * len(work)
        rows = zip(work, ran.sampled, guesses, strict=True)
        for row, (done, sampled, guessed) in enumerate(rows):
            account, item = done.account, done.item
            if row in ran.faults:
                fault = GrammarFailed(
                    f"the answer cannot be held to its format any further: {ran.faults[row]}"
                )
                accepted[item.sequence] = Refused(item.sequence, fault)
            else:
                told = ran.prompts.get(row, ())
                accepted[item.sequence] = Evaluated(item.sequence, sampled, guessed, told)
            if self._sequences.get(item.sequence) is account:
                account.committed(item, sampled)
                self._share_full_pages(item.sequence, account)
        return StepResult(
            outcomes=tuple(
                step.refused[place] if place in step.refused else accepted[item.sequence]
                for place, item in enumerate(step.items)
            ),
            free_pages=self._pool.free,
            seconds=ran.seconds,
        )

    def abandon(self, step: Step) -> None:
        """The step failed or was not run: its sequences are as they were before it.

        The runner will be told anew what it has to know, and no cached beginning is trusted.
        """
        self._runner.leave_out(step.command.number)
        for undone in self._in_flight.pop(step.command.number):
            account, sequence = undone.account, undone.item.sequence
            if self._sequences.get(sequence) is account:
                self._pool.shrink(sequence, undone.pages)
                account.rolled_back()
        # Whatever went wrong may have touched pages that others would share.
        self._prefixes.clear()
        self._pool.keep_nothing()
        self._reset = True
        self._closed.clear()
        self._opened = dict.fromkeys(self._sequences)

    def prepare_grammar(self, grammar: str) -> None:
        """Have a grammar compiled before a sequence is opened with it. Any thread may call it."""
        self._runner.prepare_grammar(grammar)

    def watch(self) -> bool:
        """Wait until the runner has died; False when it was stopped instead. Blocks."""
        return self._runner.watch()

    def interrupt(self) -> bool:
        """End a step that takes too long, where the runner can do that."""
        return self._runner.interrupt()

    def stop(self) -> None:
        """Run no more steps. Blocks until what belongs to the runner has ended."""
        self._runner.stop()

    def eval_batch(self, items: Sequence[StepItem]) -> StepResult:
        """A whole step in one blocking call: every item that passes the checks, or none.

        Returns:
            One outcome per item, in their order.

        Raises:
            Exception: what ``run`` raised. Every sequence is as it was before, pages included.
        """
        step = self.prepare(items)
        try:
            ran = self.run(step)
        except BaseException:
            self.abandon(step)
            raise
        return self.commit(step, ran)

    def _opening(self, sequence: int) -> Opening:
        account, pages = self._sequences[sequence], tuple(self._pool.table(sequence))
        return Opening(
            sequence, account.sampling, account.tokens[:], pages, account.pending, account.adapter
        )

    def _share_full_pages(self, sequence: int, account: Account) -> None:
        """Let others find the pages that have become full."""
        if not self._prefix_cache:
            return
        table = self._pool.table(sequence)
        for number, digest in account.name_full_pages(self.info.page_size):
            if self._prefixes.remember(digest, table[number]):
                self._pool.keep(table[number])

    def _examine(self, item: StepItem, seen: Collection[int]) -> WireError | None:
        """The checks of one item: what is wrong with it."""
        account = self._sequences.get(item.sequence)
        if account is None:
            return InternalError(f"sequence {item.sequence} is not open in this engine")
        if item.sequence in seen:
            return InternalError(f"sequence {item.sequence} is twice in one batch")
        error = account.fault(item, self.info)
        if error is None and self._pages_missing(item) > self._pool.free:
            error = ServerBusy("the KV cache is full", retry_after=1)
        return error

    def _pages_missing(self, item: StepItem) -> int:
        """Pages that a sequence needs for an item beyond those it has."""
        end = self._sequences[item.sequence].end + item.most
        return max(self.info.pages_for(end) - len(self._pool.table(item.sequence)), 0)
