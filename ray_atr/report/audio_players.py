"""The clips a query finds, to listen to: an HTML fragment that needs no other file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch.nn import functional

from ray_atr.metrics.relevance import Array, as_matrix
from ray_atr.report.html import data_url


@dataclass(frozen=True)
class FoundClip:
    """One clip found for a query: its encoded file (WAV, FLAC, OGG, MP3) or None, cosine, and whether it is the right one."""

    clip_id: str
    audio: bytes | None
    score: float
    is_relevant: bool
    caption: str = ""


@dataclass(frozen=True)
class Query:
    """One query, its language (ISO 639-3) and what it found, best first; `rank` is that of the right clip, 1 = first."""

    text: str
    language: str
    found: Sequence[FoundClip]
    rank: float | None = None


def best_clips(text: Array, audio: Array, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and cosines of the `count` best clips `audio` [N, D] of each query `text` [Q, D], both [Q, count]."""
    clips = as_matrix("audio", audio)
    texts = as_matrix("text", text, clips.shape[1]).to(clips.device)
    cosine = functional.normalize(texts.float(), dim=1) @ functional.normalize(clips.float(), dim=1).T
    score, index = cosine.topk(min(count, len(clips)), dim=1)
    return index, score


def players_html(queries: Sequence[Query]) -> str:
    """What each query finds, with players of clips that can be heard; the right clip is marked. Audio is embedded as base64."""
    return "\n".join(_query(query) for query in queries)


def _query(query: Query) -> str:
    rank = "" if query.rank is None else f' <span class="rank">right clip at rank {query.rank:g}</span>'
    cards = "\n".join(_card(place, found) for place, found in enumerate(query.found, 1))
    language = escape(query.language)
    return (
        f'<section class="query"><h3><span class="language">{language}</span> '
        f'<span lang="{language}">{escape(query.text)}</span>{rank}</h3>\n<ol class="found">\n{cards}\n</ol></section>'
    )


def _card(place: int, found: FoundClip) -> str:
    mark = ' class="relevant"' if found.is_relevant else ""
    name = escape(found.clip_id)
    label = "right clip, " if found.is_relevant else ""
    caption = f"<p>{escape(found.caption)}</p>" if found.caption else ""
    player = ""
    if found.audio is not None:
        player = f'<audio controls preload="none" aria-label="{name}" src="{data_url(found.audio)}"></audio>'
    return (
        f'<li{mark}><div><b>{place}</b> {name} <span class="score">{label}cosine {found.score:.3f}</span></div>'
        f"{player}{caption}</li>"
    )
