"""DroidSpeak: the program (`droidspeak` on the path, `python -m droidspeak`) and a client for its server."""

from .client import Client
from .errors import ApiError, ConnectionFailed
from .answers import Answer, Model, Piece, Reuse, Usage, Version

__all__ = ["Answer", "ApiError", "Client", "ConnectionFailed", "Model", "Piece", "Reuse", "Usage", "Version"]
