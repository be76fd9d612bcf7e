"""Errors that agents receive from the gateway, in the form of OpenAI's API."""

from gumshoe.errors import GumshoeError


class GatewayError(GumshoeError):
    """Report to an agent that a request cannot be answered.

    `status` is that of the HTTP response; `api_code` and `api_type` are OpenAI's names for the error.
    """

    status = 400
    api_code: str | None = None
    api_type = "invalid_request_error"


class InvalidRequestError(GatewayError):
    """Report a request that is not valid, or asks for something that is not supported."""


class UnsupportedParameterError(InvalidRequestError):
    """Report a parameter whose absence would change the meaning of a request."""

    api_code = "unsupported_parameter"


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


class EpisodeFailedError(GatewayError):
    """Report that the policy or a tool failed. The episode ends, and is run again."""

    status = 503
    api_type = "server_error"
