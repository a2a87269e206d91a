"""The card of a saved retriever, README.md beside its weights: what it embeds, how to load it, and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ray_atr.data.audio import FrontEnd
from ray_atr.models.late_interaction import ONLY_VECTORS
from ray_atr.models.model_settings import ModelSettings

CARD_FILE = "README.md"
HEAD = "<!-- written by ray_atr; a new evaluation with its card replaces it -->"


def card_text(
    settings: ModelSettings,
    *,
    front_end: FrontEnd,
    distance: str,
    vector_width: int,
    languages: Sequence[str] = (),
    licence: str = "",
    facts: Mapping[str, object] | None = None,
    scores: str = "",
) -> str:
    """The card as Markdown with the hub's header. `facts` are about its training; `scores` is a table in Markdown.

    `licence` is that of the training data: the publisher of the model decides about the model's own.
    """
    audio, text = settings.audio.name, settings.text.name
    about: dict[str, Any] = {
        "library_name": "ray_atr",
        "pipeline_tag": "feature-extraction",
        "tags": [
            "audio",
            "text-to-audio-retrieval",
            "audio-text-retrieval",
            f"audio-tower-{audio}",
            f"text-tower-{text}",
        ],
    }
    if languages:
        about["language"] = list(languages)
    rate, seconds, clips, texts = front_end.sample_rate, front_end.clip_seconds, '["clip.wav"]', '["a dog barks"]'
    if front_end.kind == "vector":
        hears = f"Clips are vectors of {front_end.num_mels} numbers, made by another encoder."
        clips = 'numpy.load("clips.npy")'
    elif settings.pools_windows:
        hears = f"Audio of any rate and length: it is resampled to {rate:,} Hz and heard in windows of {seconds:g} s."
    else:
        hears = (
            f"Audio of any rate: it is resampled to {rate:,} Hz; of a clip longer than {seconds:g} s the rest is cut."
        )
    if text == "vectors":
        hears += " Texts are vectors too."
        texts = 'numpy.load("texts.npy")'
    compared = (
        "their inner product (unit vectors)" if distance == "cosine" else "their Euclidean distance (smaller is nearer)"
    )
    if settings.is_late:
        compared += f". {ONLY_VECTORS[0].upper()}{ONLY_VECTORS[1:]}"
    lines = [
        "---",
        yaml.safe_dump(about, sort_keys=False, allow_unicode=True).strip(),
        "---",
        HEAD,
        "",
        "# Audio-text retriever",
        "",
        f"Embeds audio (`{audio}`) and texts (`{text}`) into one space of {vector_width} numbers; two vectors are compared by",
        f"{compared}. {hears} The same clip gives the same vector whatever it is embedded with:",
        "no random crop, no dependence on the batch.",
        "",
        "```python",
        *(["import numpy"] if "numpy" in clips + texts else []),
        "from ray_atr import Retriever",
        "",
        'retriever = Retriever.from_pretrained("FOLDER")',
        f"scores = retriever.similarity(retriever.encode_text({texts}), retriever.encode_audio({clips}))",
        "```",
    ]
    if front_end.kind != "vector" and text != "vectors" and not settings.is_late:
        lines += [
            "",
            "`ray-atr export FOLDER --to FORMAT` writes it for other libraries, in each format that can hold these towers: onnx,",
            f"clap, sentence-transformers, mlflow. All but mlflow take audio at {rate:,} Hz alone, no longer than {seconds:g} s.",
        ]
    if facts:
        lines += ["", "## Training and evaluation", "", *(f"- {name}: {value}" for name, value in facts.items())]
    if licence:
        lines += ["", f"Licence of the training data, as its data set states it: {licence}"]
    if scores:
        lines += ["", "## Scores", "", scores.strip()]
    else:
        lines += ["", "Not evaluated yet: `ray-atr evaluate --checkpoint FOLDER --card` writes its scores here."]
    return "\n".join(lines) + "\n"
