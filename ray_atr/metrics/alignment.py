"""Captions of clips in several languages as one numbered list, so that caption m is one sentence in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ray_atr.common.ranking import RELEVANCE
from ray_atr.common.settings import nearest, refuse
from ray_atr.metrics.ranks import count_ranks_of_matrix
from ray_atr.metrics.relevance import Relevance, relevance_by_clip, relevance_by_label
from ray_atr.metrics.retrieval import Retrieval, score


@dataclass(frozen=True)
class AlignedCaptions:
    """M captions: `sentences[language][m]` ("" if missing), `present[language]` [M] bool, and the clips relevant to each."""

    sentences: dict[str, list[str]]
    present: dict[str, np.ndarray]
    relevance: Relevance

    def __len__(self) -> int:
        return self.relevance.num_texts

    @property
    def is_by_label(self) -> bool:
        """Whether a caption stands for a class, all clips of which are relevant to it."""
        return len(self.relevance.text) != len(self)

    @property
    def clip_of_caption(self) -> np.ndarray:
        """The clip of each caption, or the first clip of its class, [M]."""
        return self.relevance.first_clip.numpy()


def align_captions(
    captions: Mapping[str, Sequence[Sequence[str]]],
    limit: int = 0,
    *,
    labels: Sequence[Sequence[str]] | None = None,
    relevance: str = "clip",
) -> AlignedCaptions:
    """Number the captions of N clips, `captions[language][clip]`, caption j of a clip being one sentence in all languages.

    An empty string, or a list shorter than another language's, is a missing caption. `limit` is the number of captions of a clip
    that are used, the first ones; 0: all. ValueError for a language without captions.

    relevance  clip: a caption's own clip is relevant to it. label: every clip with one of its clip's `labels` is, and equal
               captions are merged. auto: label if each class has one caption (`is_class_captioned`), else clip.

    When: captions come clip by clip, and `evaluate_languages` wants them as one list a language.
    Related: `evaluate_languages` takes `clip_of_caption` and `present`.

    >>> from ray_atr.metrics import align_captions
    >>> found = align_captions({"eng": [["a dog", "it barks"], ["rain"]], "fra": [["un chien"], ["la pluie"]]})
    >>> found.clip_of_caption.tolist(), found.sentences["fra"]
    ([0, 0, 1], ['un chien', '', 'la pluie'])
    """
    if relevance not in RELEVANCE:
        raise refuse("relevance", relevance, ", ".join(RELEVANCE), nearest(relevance, RELEVANCE))
    sizes = {language: len(of_clip) for language, of_clip in captions.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise refuse("captions", sizes, "the same clips, at least one, in every language")
    num_clips = next(iter(sizes.values()))
    counts = [max(len(of_clip[clip]) for of_clip in captions.values()) for clip in range(num_clips)]
    numbers = [(clip, j) for clip in range(num_clips) for j in range(min(counts[clip], limit or counts[clip]))]
    sentences = {
        language: [of_clip[clip][j] if j < len(of_clip[clip]) else "" for clip, j in numbers]
        for language, of_clip in captions.items()
    }
    clip_of_caption = [clip for clip, _ in numbers]
    first = next(iter(captions.values()))
    if relevance == "label" or (relevance == "auto" and labels is not None and is_class_captioned(first, labels)):
        if labels is None or not any(labels):
            raise refuse("relevance", relevance, "clip, for clips without labels")
        return _by_label(sentences, clip_of_caption, labels)
    return _checked(sentences, relevance_by_clip(np.array(clip_of_caption, np.int64), len(numbers), num_clips))


def ranked_by(similarity: torch.Tensor, captions: AlignedCaptions, language: str) -> Retrieval:
    """The scores of every query, from similarities [P, N] of a language's existing captions with the clips."""
    rows = np.flatnonzero(captions.present[language])
    relevance = captions.relevance.of_texts(torch.from_numpy(rows))
    return score(count_ranks_of_matrix(similarity, relevance), relevance, rows)


def is_class_captioned(captions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> bool:
    """Whether each of N clips has one label and one caption, and all clips of a label, and no others, have the same caption."""
    if any(len(texts) != 1 or len(own) != 1 for texts, own in zip(captions, labels, strict=True)):
        return False
    pairs = {(text, label) for (text,), (label,) in zip(captions, labels, strict=True)}
    return len({text for text, _ in pairs}) == len({label for _, label in pairs}) == len(pairs) < len(captions)


def _by_label(
    sentences: Mapping[str, Sequence[str]], clip_of_caption: Sequence[int], labels: Sequence[Sequence[str]]
) -> AlignedCaptions:
    """Merge captions that are equal in the first language that has them; they are relevant to every clip with one of their
    clips' labels.
    """
    rows_of: dict[tuple[str, str], list[int]] = {}
    for m in range(len(clip_of_caption)):
        captions = ((language, texts[m]) for language, texts in sentences.items() if texts[m].strip())
        rows_of.setdefault(next(captions, ("", "")), []).append(m)
    labels_of = [{label for m in rows for label in labels[clip_of_caption[m]]} for rows in rows_of.values()]
    labelled = [rows for rows, of_rows in zip(rows_of.values(), labels_of, strict=True) if of_rows]
    merged = {
        language: [next(filter(None, (texts[m] for m in rows)), "") for rows in labelled]
        for language, texts in sentences.items()
    }
    return _checked(merged, relevance_by_label([*filter(None, labels_of)], labels))


def _checked(sentences: dict[str, list[str]], relevance: Relevance) -> AlignedCaptions:
    present = {
        language: np.array([bool(text.strip()) for text in texts], bool) for language, texts in sentences.items()
    }
    silent = [language for language, mask in present.items() if not mask.any()]
    if silent:
        raise refuse("captions", f"no caption in {', '.join(silent)}", "languages with captions")
    return AlignedCaptions(sentences, present, relevance)
