"""Compiling the kernels, and keeping what came of it for the next start.

Numba keeps compiled code on disk and looks whether the file that the function is written in has
changed since. Ours are put together from several files: the innermost loops and the constants of
one are compiled into the kernels of another. So each piece of code that is kept says what all of
them were, in the same file, and is compiled anew when that has changed.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import llvmlite
import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
)
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from ds4trio.models.cache import cache_folder

__all__ = ["compile_for", "compiled"]

log = logging.getLogger(__name__)

SECONDS = 30
"""What compiling all kernels takes, about, on one core of a server."""


def compiled(*signatures: Any, parallel: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Have Numba compile a function, which holds no lock of the interpreter while it runs.

    Args:
        signatures: Numba's, of what it is compiled for, when it is defined and for nothing else.
            None for a part of other kernels, which is compiled with them, and for one that
            ``compile_for`` compiles when it is known for what.
        parallel: whether each ``prange`` in it is shared among threads.
    """

    def compile_it(function: Callable[..., Any]) -> Any:
        kernel = numba.njit(nogil=True, parallel=parallel)(function)
        try:
            kernel._cache = _Cache(function)  # as njit(cache=True) does, with Numba's own
        except RuntimeError:  # Numba found none of the folders fit, or the user has no home
            _warn("no folder for them can be written")
        for signature in signatures:
            kernel.compile(signature)
        if signatures:
            kernel.disable_compile()
        return kernel

    return compile_it


def compile_for(kernel: Any, signature: Any) -> None:
    """Have a kernel for these arguments, and from now on for none that were not asked for."""
    kernel.disable_compile(False)
    kernel.compile(signature)
    kernel.disable_compile()


@functools.cache
def _sources() -> str:
    """A digest of everything that compiled code is made from, and with."""
    digest = hashlib.sha256(f"numba {numba.__version__} llvmlite {llvmlite.__version__}".encode())
    here = files("ds4trio.engine.native").iterdir()
    for file in sorted(here, key=lambda file: file.name):
        if file.name.endswith(".py"):
            source = file.read_bytes()
            digest.update(f"\n{file.name} {len(source)}\n".encode())
            digest.update(source)
    return digest.hexdigest()


class _OwnFolder(InTreeCacheLocator):
    """Where fetched models are kept too, for an installed package that cannot be written to."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        super().__init__(function, file)
        apart = self.get_suitable_cache_subpath(file)  # for each place of installation
        self._cache_path = str(cache_folder() / "kernels" / apart)


class _Form(CompileResultCacheImpl):
    """What is written, and in which folder: the first of these that can be written."""

    _locator_classes = (UserProvidedCacheLocator, InTreeCacheLocator, _OwnFolder)

    def reduce(self, result: Any) -> Any:
        code = dumps(super().reduce(result))
        return _sources(), hashlib.sha256(code).digest(), code

    def rebuild(self, target: Any, kept: Any) -> Any:
        sources, digest, code = kept
        # Machine code that a fault of the disk has changed would be run as it is.
        if sources != _sources() or hashlib.sha256(code).digest() != digest:
            return None
        return super().rebuild(target, pickle.loads(code))


class _Cache(FunctionCache):
    """Says when something has to be compiled. Nothing that befalls a file stops a start."""

    _impl_class = _Form

    def load_overload(self, signature: Any, target: Any) -> Any:
        result = None
        try:
            result = super().load_overload(signature, target)
            if result is not None and not self._is_asked_for(result, signature):
                result = None  # what is compiled now takes its place
        except Exception:  # damaged, which can raise anything, or not ours to read
            self._begin_anew()
        if result is None:
            _announce()
        return result

    def _is_asked_for(self, result: Any, signature: Any) -> bool:
        """Two servers that start at the same time, for kernels of different types, may both write
        the file that the list of one of them names."""
        arguments, _ = normalize_signature(signature)
        name = self._py_func.__qualname__
        return bool(result.signature.args == arguments and result.fndesc.qualname == name)

    def save_overload(self, signature: Any, result: Any) -> None:
        try:
            super().save_overload(signature, result)
        except OSError as error:
            _warn(error.strerror or str(error))

    def _begin_anew(self) -> None:
        try:
            self.flush()
        except OSError as error:
            self.disable()
            _warn(error.strerror or str(error))


@functools.cache
def _announce() -> None:
    log.info("compiling the kernels for this processor, once: about %d s", SECONDS)


@functools.cache
def _warn(why: str) -> None:
    log.warning(
        "the compiled kernels are not kept (%s): every start takes about %d s longer; set "
        "DS4TRIO_CACHE to a folder with room that can be written",
        why,
        SECONDS,
    )
