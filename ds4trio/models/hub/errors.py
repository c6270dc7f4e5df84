"""What goes wrong between here and the hub, as one line that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub.names import HubName

__all__ = ["clear_errors"]

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@contextmanager
def clear_errors(name: HubName) -> Iterator[None]:
    """Raise what the hub library, its HTTP library and the disk raise as ``ModelUnavailable``."""
    try:
        yield
    except ModelUnavailable:
        raise
    except Exception as error:
        # The HTTP library is not the same in every release of the hub library, and so are its
        # errors: whatever is not known by name is told as it says it.
        raise ModelUnavailable(_told(error, name)) from error


def _told(error: BaseException, name: HubName) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        DisabledRepoError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repo, hub = name.repo, constants.ENDPOINT
    if isinstance(error, GatedRepoError):
        return (
            f"{repo} asks for permission: accept its terms on {hub}/{repo}, then set HF_TOKEN to a "
            "token of yours."
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no revision {name.revision or 'main'!r}."
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"The hub has no model {repo}, or it is private and HF_TOKEN is not set to a token "
            "that may read it."
        )
    if isinstance(error, DisabledRepoError):
        return f"{repo} has been disabled by the hub."
    if isinstance(error, HFValidationError):
        return f"{repo!r} is not a hub id: {_line(error)}"
    if isinstance(error, OfflineModeIsEnabled):
        return (
            f"{name} is not complete on this machine, and HF_HUB_OFFLINE forbids fetching it; "
            f"unset it, or run 'ds4trio pull {name}' where there is a network."
        )
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return _told(error.__cause__, name)
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return (
                f"The hub refuses {repo} ({status}): HF_TOKEN is wrong, or its token may not read "
                "this model."
            )
        if status == 429:
            return (
                "The hub limits how often this machine may ask, and did so for every try; try "
                "again later, or set HF_TOKEN to a token of yours, which may ask more often."
            )
        if status >= 500:
            return f"The hub has a problem of its own ({status}); try {name} again later."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk of {constants.HF_HUB_CACHE} is full; what has come of {name} is kept. Make "
            "room, or set HF_HOME to a folder on another disk."
        )
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return f"The hub cache {constants.HF_HUB_CACHE} cannot be written: {error.strerror}."
    if "Consistency check failed" in str(error):
        return f"{name} came incomplete from the hub; try again."
    unreachable = ("ConnectError", "ConnectTimeout", "ProxyError", "LocalEntryNotFoundError")
    if type(error).__name__ in unreachable:
        return (
            f"{name} is not complete on this machine and the hub ({hub}) cannot be reached; run "
            f"'ds4trio pull {name}' where there is a network, or give --model a path."
        )
    return f"{name} could not be fetched from the hub: {_line(error).rstrip('.')}."


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
