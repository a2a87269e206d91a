"""What the embeddings look like as a cloud."""

from __future__ import annotations

from ray_atr.metrics.arrays import Array, as_matrix


def modality_gap(audio: Array, text: Array) -> float:
    """Norm of the difference of the mean audio [N, D] and mean text [M, D] embedding (Luong et al. 2024, section 5.1).

    Rows are taken as given: for unit rows it is between 0 and 2.
    """
    clips = as_matrix("audio", audio)
    texts = as_matrix("text", text, clips.shape[1]).to(clips.device)
    return float((clips.double().mean(0) - texts.double().mean(0)).norm())
