"""An OpenID provider that a test has in its hands: it signs what it is told to, right or forged."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwk, jws

Claims = dict[str, Any]


class Provider:
    """A provider on this machine. `claims` change the next ID token, `header` its header, `key` signs it; `forge`
    makes the whole token of the claims instead; `page` answers at a path in place of what is there."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.key: Any = jwk.RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.published: list[Any] = [self.key]
        self.claims: Claims = {}
        self.header: Claims = {}
        self.forge: Callable[[Claims], str] | None = None
        self.pages: dict[str, bytes] = {}
        self.metadata: Claims = {}
        self.codes: dict[str, Mapping[str, str]] = {}
        self.asked: list[str] = []
        self.subject, self.algorithm = "ann", "RS256"

    def answer(self, url: str, **changes: Any) -> dict[str, Any]:
        """What the browser brings back that was sent to this URL."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        return {"state": query["state"], "code": code, "iss": self.issuer, **changes}

    def token(self, query: Mapping[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": self.subject,
            "aud": query["client_id"],
            "iat": now,
            "exp": now + 300,
            "auth_time": now,
            "nonce": query["nonce"],
        }
        claims |= self.claims
        claims = {name: value for name, value in claims.items() if value is not None}
        return self.sign(claims) if self.forge is None else self.forge(claims)

    def sign(self, claims: Claims, **header: Any) -> str:
        head = {"alg": self.algorithm, "kid": self.key.kid, **self.header, **header}
        head = {name: value for name, value in head.items() if value is not None}
        return jws.serialize_compact(head, json.dumps(claims).encode(), self.key, algorithms=[head["alg"]])

    def redeem(self, form: Mapping[str, str]) -> tuple[int, bytes]:
        query = self.codes.pop(form["code"], None)
        if query is None:
            return 400, b'{"error":"invalid_grant"}'
        challenge = base64.urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if challenge != query["code_challenge"] or form["redirect_uri"] != query["redirect_uri"]:
            return 400, b'{"error":"invalid_grant"}'
        return 200, json.dumps({"token_type": "Bearer", "id_token": self.token(query)}).encode()

    def page(self, path: str) -> bytes | None:
        self.asked.append(path)
        if path in self.pages:
            return self.pages[path]
        if path == "/.well-known/openid-configuration":
            return json.dumps(
                {
                    "issuer": self.issuer,
                    "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token",
                    "jwks_uri": f"{self.issuer}/jwks",
                    "authorization_response_iss_parameter_supported": True,
                    **self.metadata,
                }
            ).encode()
        if path == "/jwks":
            return json.dumps({"keys": [{**key.as_dict(private=False)} for key in self.published]}).encode()
        return None


@contextmanager
def running_provider() -> Iterator[Provider]:
    """A provider that listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # as the library calls it
            body = provider.page(urlsplit(self.path).path)
            self._say(404 if body is None else 200, body or b"")

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["content-length"])).decode()
            self._say(*provider.redeem({name: values[0] for name, values in parse_qs(text).items()}))

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
