"""Audio towers; `AUDIO_TOWERS` names them."""

from __future__ import annotations

from ray_atr.models.audio.ced import Ced
from ray_atr.models.audio.resnet38 import ResNet38
from ray_atr.models.audio.small_cnn import SmallCnn
from ray_atr.models.audio.transformers import Ast, Htsat, TransformersAudio
from ray_atr.models.audio.vectors import AudioVectors
from ray_atr.models.tower import AudioSettings

AUDIO_TOWERS: dict[str, type[AudioSettings]] = {
    tower.name: tower for tower in (SmallCnn, Ced, ResNet38, Htsat, Ast, TransformersAudio, AudioVectors)
}
