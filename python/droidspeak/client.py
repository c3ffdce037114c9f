"""A client for the server's API. Calls wait for their answers; threads may share a client."""

import ssl
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from .answers import Answer, Model, Piece, Version
from .connection import Endpoint
from .errors import ApiError

Message = Mapping[str, Any]


class Client:
    """`url`: http://HOST:PORT, https://HOST:PORT or unix:/PATH (of `serve --socket`).

    Every further field of docs/http_api.md may be given by name: temperature=0, sharing="off", cache_salt="anna".
    `context` names a request's context to a load balancer (deploy/haproxy): requests of one name go to one server.
    """

    def __init__(self, url: str = "http://127.0.0.1:8080", *, api_key: Optional[str] = None, timeout: float = 600.0,
                 tls: Optional[ssl.SSLContext] = None) -> None:
        self._endpoint = Endpoint(url, api_key, timeout, tls)

    def chat(self, model: str, messages: Sequence[Message], *, context: Optional[str] = None, **fields: Any) -> Answer:
        body = _body(fields, model=model, messages=list(messages))
        return Answer.of(self._endpoint.call("POST", "/v1/chat/completions", body, _headers(context)))

    def stream_chat(self, model: str, messages: Sequence[Message], *, context: Optional[str] = None,
                    **fields: Any) -> Iterator[Piece]:
        body = _streamed(_body(fields, model=model, messages=list(messages)))
        for event in self._endpoint.events("/v1/chat/completions", body, _headers(context)):
            yield Piece.of(event)

    def complete(self, model: str, prompt: Union[str, Sequence[int]], *, context: Optional[str] = None,
                 **fields: Any) -> Answer:
        body = _body(fields, model=model, prompt=prompt)
        return Answer.of(self._endpoint.call("POST", "/v1/completions", body, _headers(context)))

    def stream_complete(self, model: str, prompt: Union[str, Sequence[int]], *, context: Optional[str] = None,
                        **fields: Any) -> Iterator[Piece]:
        body = _streamed(_body(fields, model=model, prompt=prompt))
        for event in self._endpoint.events("/v1/completions", body, _headers(context)):
            yield Piece.of(event)

    def models(self) -> List[Model]:
        return [Model.of(entry) for entry in self._endpoint.call("GET", "/v1/models")["data"]]

    def tokenize(self, text: str) -> List[int]:
        tokens: List[int] = self._endpoint.call("POST", "/tokenize", {"prompt": text})["tokens"]
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        text: str = self._endpoint.call("POST", "/detokenize", {"tokens": list(tokens)})["prompt"]
        return text

    def load_adapter(self, name: str, path: str) -> None:
        """`path` is the server's, under its --adapter-root. A taken name is refused."""
        self._endpoint.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

    def replace_adapter(self, name: str, path: str) -> None:
        """Running requests finish on what they began with."""
        body = {"lora_name": name, "lora_path": path, "load_inplace": True}
        self._endpoint.call("POST", "/v1/load_lora_adapter", body)

    def unload_adapter(self, name: str) -> None:
        self._endpoint.call("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def state(self) -> Dict[str, Any]:
        """Families, caches by tier, queue; docs/http_api.md, State."""
        state: Dict[str, Any] = self._endpoint.call("GET", "/v1/droidspeak/state")
        return state

    def plan_books(self) -> List[Dict[str, Any]]:
        """What was measured for each pair; docs/http_api.md, State."""
        books: List[Dict[str, Any]] = self._endpoint.call("GET", "/v1/droidspeak/plan_books")["plan_books"]
        return books

    def version(self) -> Version:
        raw = self._endpoint.call("GET", "/version")
        return Version(raw["version"], raw["commit"], raw["features"])

    def metrics(self) -> str:
        """Prometheus' text format."""
        return str(self._endpoint.call("GET", "/metrics"))

    def is_healthy(self) -> bool:
        """False while the server shuts down or after it has failed; ConnectionFailed where there is none."""
        try:
            self._endpoint.call("GET", "/health")
        except ApiError as error:
            if error.status == 503:
                return False
            raise
        return True


def _body(fields: Mapping[str, Any], **required: Any) -> Dict[str, Any]:
    if "stream" in fields:
        raise TypeError("stream: use stream_chat or stream_complete")
    return {**required, **fields}


def _streamed(body: Dict[str, Any]) -> Dict[str, Any]:
    options = {"include_usage": True, **(body.get("stream_options") or {})}
    return {**body, "stream": True, "stream_options": options}


def _headers(context: Optional[str]) -> Dict[str, str]:
    return {} if context is None else {"X-DroidSpeak-Context": context}
