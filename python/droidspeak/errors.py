"""What can go wrong."""

from typing import Any, Optional


class ApiError(Exception):
    """The server refused a request, or failed while it answered (then `status` is 200: the stream had begun)."""

    def __init__(self, status: int, message: str, param: Optional[str] = None, code: Optional[str] = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.param = param  # the field that it is about
        self.code = code

    @classmethod
    def of_body(cls, status: int, body: Any) -> "ApiError":
        """Of the server's own form; anything else (a proxy's page) is shown as it is."""
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            return cls(status, str(body)[:500])
        return cls(status, str(error.get("message")), error.get("param"), error.get("code"))


class ConnectionFailed(Exception):
    """The server could not be reached, or went away in the middle of an answer."""
