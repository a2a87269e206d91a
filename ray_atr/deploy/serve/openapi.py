"""The OpenAPI description of the server."""

from __future__ import annotations

import importlib.metadata
from typing import Any

MATCH = {
    "type": "object",
    "required": ["path", "start", "end", "score", "probability", "clip_id", "captions"],
    "properties": {
        "path": {"type": "string", "description": "the sound's path in the archive"},
        "start": {"type": "number", "description": "where the window begins (s)"},
        "end": {"type": "number", "description": "where it ends (s)"},
        "score": {"type": "number", "description": "the retriever's similarity"},
        "probability": {"type": ["number", "null"], "description": "that it matches the text, if calibrated"},
        "clip_id": {"type": "string"},
        "captions": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    },
}


def describe_api() -> dict[str, Any]:
    """The description, as `/openapi.json` answers it."""
    matches = {"type": "object", "properties": {"matches": {"type": "array", "items": MATCH}}}
    tags = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "object", "required": ["label", "score"]}}},
    }
    text = _parameter("text", "string", "what to hear, in any language the model learned", is_required=True)
    top = _parameter("top", "integer", "answers at most, 1 to 1,000; 10 if it is not given")
    language = _parameter("language", "string", "ISO 639 code of the text's language")
    path = _parameter("path", "string", "a sound of the index", is_required=True)
    start = _parameter("start", "number", "second of the sound")
    label = _parameter("label", "string", "a label; repeat it for each", is_required=True)
    nothing = _parameter("or_nothing", "integer", "1: no answer if the best ones look like those to what is not there")
    at_least = _parameter("at_least", "number", "only answers of this probability or more")
    body = {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
    paths = {
        "/search": {"get": _operation("Windows that fit a text", [text, language, top, at_least, nothing], matches)},
        "/similar": {
            "get": _operation("Windows most like one of the index", [path, start, top], matches),
            "post": {**_operation("Windows most like an uploaded sound", [top], matches), "requestBody": body},
        },
        "/tag": {
            "post": {**_operation("Labels by how well they fit a sound", [label, language], tags), "requestBody": body}
        },
        "/audio": {"get": _operation("A stretch of a sound from a second on", [path, start], None)},
        "/health": {"get": _operation("What is served", [], {"type": "object"})},
    }
    info = {"title": "ray_atr", "version": importlib.metadata.version("ray_atr")}
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def _parameter(name: str, kind: str, about: str, *, is_required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": is_required, "description": about, "schema": {"type": kind}}


def _operation(about: str, parameters: list[dict[str, Any]], answer: dict[str, Any] | None) -> dict[str, Any]:
    content = {"audio/wav": {}} if answer is None else {"application/json": {"schema": answer}}
    mistake = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    wrong = {"description": "a mistake in the request", "content": {"application/json": {"schema": mistake}}}
    responses = {"200": {"description": about, "content": content}, "4XX": wrong, "503": {"description": "too busy"}}
    return {"summary": about, "parameters": parameters, "responses": responses}
