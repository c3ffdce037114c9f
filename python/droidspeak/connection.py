"""HTTP to a server on a port (plain or TLS) or a unix socket, with the standard library alone."""

import http.client
import json
import socket
import ssl
import urllib.parse
from typing import Any, Dict, Iterator, Optional

from .errors import ApiError, ConnectionFailed


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Endpoint:
    """Where a server is. Each request has a connection of its own, so that threads may share one."""

    def __init__(self, url: str, api_key: Optional[str], timeout: float, tls: Optional[ssl.SSLContext]) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https", "unix"):
            raise ValueError(f"url {url!r}: expected http://HOST:PORT, https://HOST:PORT or unix:/PATH")
        if parts.scheme == "unix" and (parts.netloc or not parts.path):
            raise ValueError(f"url {url!r}: expected a path, as in unix:/run/droidspeak/socket")
        if parts.scheme != "unix" and not parts.hostname:
            raise ValueError(f"url {url!r}: expected a host, as in http://127.0.0.1:8080")
        self.url = url
        self._parts = parts
        self._port = (443 if parts.scheme == "https" else 80) if parts.port is None else parts.port
        self._base = "" if parts.scheme == "unix" else parts.path.rstrip("/")
        self._timeout = timeout
        self._tls = tls
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def _connection(self) -> http.client.HTTPConnection:
        if self._parts.scheme == "unix":
            return _UnixConnection(self._parts.path, self._timeout)
        host = self._parts.hostname or ""
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, self._port, timeout=self._timeout, context=self._tls)
        return http.client.HTTPConnection(host, self._port, timeout=self._timeout)

    def _send(self, connection: http.client.HTTPConnection, method: str, path: str, body: Any,
              headers: Optional[Dict[str, str]]) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        kind = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, self._base + path, data, {**self._headers, **kind, **(headers or {})})
        response = connection.getresponse()
        if response.status >= 400:
            raise ApiError.of_body(response.status, _value_of(response.read()))
        return response

    def call(self, method: str, path: str, body: Any = None, headers: Optional[Dict[str, str]] = None) -> Any:
        """The answer's JSON, or its text where it is none."""
        connection = self._connection()
        try:
            return _value_of(self._send(connection, method, path, body, headers).read())
        except (OSError, http.client.HTTPException) as problem:
            raise ConnectionFailed(f"{self.url}: {problem or type(problem).__name__}") from problem
        finally:
            connection.close()

    def events(self, path: str, body: Any, headers: Optional[Dict[str, str]] = None) -> Iterator[Any]:
        """The JSON of each server-sent event until [DONE]. Leaving the loop cancels the request."""
        connection = self._connection()
        try:
            for line in self._send(connection, "POST", path, body, headers):
                if not line.startswith(b"data:"):
                    continue
                data = line[len(b"data:"):].strip()
                if data == b"[DONE]":
                    return
                value = json.loads(data)
                if "error" in value:
                    raise ApiError.of_body(200, value)
                yield value
            raise ConnectionFailed(f"{self.url}: the stream ended without [DONE]")
        except (OSError, http.client.HTTPException) as problem:
            raise ConnectionFailed(f"{self.url}: {problem or type(problem).__name__}") from problem
        finally:
            connection.close()


def _value_of(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
