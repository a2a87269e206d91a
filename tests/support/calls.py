"""Requests to a server on this machine."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlencode


def call(
    port: int, method: str, place: str, /, body: Any = None, headers: dict[str, str] | None = None, **parameters: Any
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
    connection.request(method, place + query, body, headers or {})
    answer = connection.getresponse()
    content = answer.read()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(content) if is_json else content
