"""Audio towers, one file each; `AUDIO_TOWERS` names them."""

from __future__ import annotations

from ray_atr.models.audio.small_cnn import SmallCnn
from ray_atr.models.tower import AudioSettings

AUDIO_TOWERS: dict[str, type[AudioSettings]] = {
    SmallCnn.name: SmallCnn,
}
