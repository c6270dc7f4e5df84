"""Every error a client or an operator can meet, with its wire code and HTTP status.

Ds4TrioError
+-- RequestError                 the client's request is at fault; nobody else notices
|   +-- InvalidRequest           400 invalid_request_error
|   |   +-- ContextLengthExceeded    400 context_length_exceeded
|   |   +-- ConnectionLimitReached   400 websocket_connection_limit_reached
|   |   +-- InvalidStreamId          400 invalid_stream_id
|   |   +-- PreviousResponseNotFound 400 previous_response_not_found
|   |   +-- StreamLimitReached       400 websocket_stream_limit_reached
|   |   +-- TokenOutOfVocabulary     400 token_out_of_vocabulary
|   |   +-- GrammarFailed            400 grammar_failed
|   +-- InvalidApiKey            401 invalid_api_key
|   +-- OriginNotAllowed         403 origin_not_allowed
|   +-- NotFound                 404 not_found
|   |   +-- ModelNotFound        404 model_not_found
|   |   +-- ResponseNotFound     404 response_not_found
|   +-- PayloadTooLarge          413 payload_too_large
+-- ServerError                  the server is at fault, or cannot serve now
|   +-- BatchFailed              500 batch_failed
|   +-- InternalError            500 internal_error
|   +-- ServerBusy               503 server_busy, with Retry-After
|   +-- ServerLoading            503 server_loading, with Retry-After
|   +-- ServerStopping           503 server_stopping
|   +-- StoreUnavailable         503 store_unavailable
+-- ClientStalled                the client stopped reading; its connection is ended
+-- ModelUnavailable             a model cannot be found, fetched or read (for operators)
+-- StepFailed                   a step raised in the engine's process
|   +-- EngineDied               that process ended
+-- StepVoid                     a step was not run, since one before it failed
+-- EngineLost                   the engine cannot be had back
+-- EngineMisuse                 a caller broke the engine's contract (a bug, never a client)
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BatchFailed",
    "ClientStalled",
    "ConnectionLimitReached",
    "ContextLengthExceeded",
    "Ds4TrioError",
    "EngineDied",
    "EngineLost",
    "EngineMisuse",
    "GrammarFailed",
    "InternalError",
    "InvalidApiKey",
    "InvalidRequest",
    "InvalidStreamId",
    "ModelNotFound",
    "ModelUnavailable",
    "NotFound",
    "OriginNotAllowed",
    "PayloadTooLarge",
    "PreviousResponseNotFound",
    "RequestError",
    "ResponseNotFound",
    "ServerBusy",
    "ServerError",
    "ServerLoading",
    "ServerStopping",
    "StepFailed",
    "StepVoid",
    "StoreUnavailable",
    "StreamLimitReached",
    "ThreadsUnsupported",
    "TokenOutOfVocabulary",
    "UpgradeRequired",
    "WireError",
]


class Ds4TrioError(Exception):
    """The root of the tree."""


class WireError(Ds4TrioError):
    """An error that can be shown to a client.

    Attributes:
        status: HTTP status.
        type: OpenAI's error family (``invalid_request_error``, ``server_error``...).
        code: the stable, machine-readable name.
        param: the request field at fault, if one is.
        retry_after: seconds after which a client may try again, if that helps.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        if code is not None:
            self.code = code


class RequestError(WireError):
    """The request is at fault; it is refused alone."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class InvalidRequest(RequestError):
    """A field is missing, of the wrong type, out of range, or not supported."""


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the context, or the KV memory of this server."""

    code = "context_length_exceeded"


class ConnectionLimitReached(InvalidRequest):
    """A WebSocket has lasted as long as one may; requests belong on a new one."""

    code = "websocket_connection_limit_reached"


class InvalidStreamId(InvalidRequest):
    """``stream_id`` cannot be the name of a lane."""

    code = "invalid_stream_id"


class PreviousResponseNotFound(InvalidRequest):
    """``previous_response_id`` names a response that is not, or no longer, known here."""

    code = "previous_response_not_found"


class StreamLimitReached(InvalidRequest):
    """A WebSocket has too many lanes, or too many requests wait on it."""

    code = "websocket_stream_limit_reached"


class ThreadsUnsupported(InvalidRequest):
    """A request wants its conversation held. By this code Anthropic's client knows that it must
    send the whole of it, and goes on."""

    code = "thread_unsupported_request"


class TokenOutOfVocabulary(InvalidRequest):
    """A token id is negative or not below the model's vocabulary size."""

    code = "token_out_of_vocabulary"


class GrammarFailed(InvalidRequest):
    """The answer cannot be held to the format that was asked for any further."""

    code = "grammar_failed"


class InvalidApiKey(RequestError):
    """The key is missing or wrong."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class OriginNotAllowed(RequestError):
    """A browser page of another origin tried to use the server."""

    status = 403
    type = "permission_error"
    code = "origin_not_allowed"


class NotFound(RequestError):
    """No such path or object."""

    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """The request names a model that this server does not serve."""

    code = "model_not_found"


class ResponseNotFound(NotFound):
    """No stored response has this id, or it is somebody else's."""

    code = "response_not_found"


class PayloadTooLarge(RequestError):
    """The body or message is larger than the server takes."""

    status = 413
    code = "payload_too_large"


class UpgradeRequired(RequestError):
    """The path is a WebSocket and the request is not an upgrade."""

    status = 426
    code = "upgrade_required"


class ServerError(WireError):
    """The server is at fault, or cannot serve this now."""


class BatchFailed(ServerError):
    """The step that held this request failed; no token of that step was sent."""

    code = "batch_failed"


class InternalError(ServerError):
    """A defect in the server. The log has the traceback; the client does not."""


class ServerBusy(ServerError):
    """Every slot is taken and the waiting line is full."""

    status = 503
    code = "server_busy"


class ServerLoading(ServerError):
    """The model is still being loaded."""

    status = 503
    code = "server_loading"


class ServerStopping(ServerError):
    """The server is shutting down, or its engine has stopped."""

    status = 503
    code = "server_stopping"


class StoreUnavailable(ServerError):
    """Responses cannot be stored or read: the disk fails, or the operator wants none."""

    status = 503
    code = "store_unavailable"


class ClientStalled(Ds4TrioError):
    """The client has read nothing for longer than the send timeout."""


class ModelUnavailable(Ds4TrioError):
    """A model cannot be found, fetched or read. The message is one line and says what to do."""


class StepFailed(Ds4TrioError):
    """A step raised in the engine's process.

    Attributes:
        kind: name of what was raised there; its traceback is a note.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class EngineDied(StepFailed):
    """The engine's process ended, and with it whatever was on its device."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind=type(self).__name__)


class StepVoid(Ds4TrioError):
    """The step was not run, because one before it failed or the engine has been stopped."""


class EngineLost(Ds4TrioError):
    """The engine's process died and could not be started again."""


class EngineMisuse(Ds4TrioError):
    """A caller broke the engine's contract, for instance one sequence twice in a batch."""
