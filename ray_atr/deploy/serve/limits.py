"""Limits of a request. Imports no heavy library, since the command's help reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class ServerLimits(Settings):
    """Limits of one request."""

    most_megabytes: float = setting(25.0, "largest body of a request (MB)", above=0, at_most=1024)
    most_seconds: float = setting(300.0, "longest sound in a request (s)", above=0)
    decode_seconds: float = setting(10.0, "longest time that reading a request's sound may take (s)", above=0)
    most_waiting: int = setting(256, "requests that may wait; more are answered 503", at_least=1)
    heard_seconds: float = setting(30.0, "longest stretch of a found sound that is sent (s)", above=0, at_most=600)
