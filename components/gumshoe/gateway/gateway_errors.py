"""Errors that agents receive from the gateway, in the form of OpenAI's API."""

from gumshoe.errors import GumshoeError


class GatewayError(GumshoeError):
    """Report to an agent that a request cannot be answered.

    `status` is that of the HTTP response; `api_code` and `api_type` are OpenAI's names for the error. `retry_after` are
    the seconds after which another attempt may succeed, or None if none can. `param` names the wrong field.
    """

    status = 400
    api_code: str | None = None
    api_type = "invalid_request_error"
    retry_after: int | None = None

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(code, message)
        self.param = param


class InvalidRequestError(GatewayError):
    """Report a request that is not valid, or asks for something that is not supported."""


class UnsupportedParameterError(InvalidRequestError):
    """Report a parameter whose absence would change the meaning of a request."""

    api_code = "unsupported_parameter"


class RequestTooLargeError(InvalidRequestError):
    """Report a request with too many bytes."""

    status = 413


class RequestTooSlowError(InvalidRequestError):
    """Report a request that did not arrive in time."""

    status = 408


class UnknownRouteError(InvalidRequestError):
    """Report a path that the gateway does not serve."""

    status = 404


class WrongMethodError(InvalidRequestError):
    """Report a path that only another method has."""

    status = 405

    def __init__(self, code: str, message: str, allowed: str) -> None:
        super().__init__(code, message)
        self.allowed = allowed


class UnknownKeyError(GatewayError):
    """Report that a key belongs to no running episode."""

    status = 401
    api_code = "invalid_api_key"


class ContextFullError(GatewayError):
    """Report that a conversation has no room for another turn."""

    api_code = "context_length_exceeded"


class LimitReachedError(GatewayError):
    """Report that an episode has used up its calls or tokens."""

    status = 429
    api_code = "insufficient_quota"
    api_type = "insufficient_quota"


class TooManyRequestsError(GatewayError):
    """Report that other requests run, so that this one has to wait."""

    status = 429
    api_code = "rate_limit_exceeded"
    api_type = "requests"
    retry_after = 1


class EpisodeFailedError(GatewayError):
    """Report that the policy or a tool failed. The episode ends, and is run again."""

    status = 503
    api_type = "server_error"
