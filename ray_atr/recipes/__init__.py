"""Experiments by name: each recipe derives from another one and changes what is different.

The names say data, towers and objective. Recipes of papers name published checkpoints (a hub id, or a file to be put under
`checkpoints/`) and prepared data sets under `data/`; every value can be overridden by its path.
"""

from __future__ import annotations

from collections.abc import Callable

from ray_atr.experiment import Experiment
from ray_atr.recipes import ask, atri, m_ltm, soundscapes

RECIPES: dict[str, Callable[[], Experiment]] = {
    recipe.__name__: recipe
    for recipe in (
        soundscapes.quickstart,
        atri.audiocaps_ced_sonar_ml_clap,
        atri.audiocaps_ced_sonar_cacl,
        atri.audiocaps_ced_sonar_kcl,
        atri.clotho_ced_sonar_ml_clap,
        atri.clotho_ced_sonar_cacl,
        atri.clotho_ced_sonar_kcl,
        atri.audiocaps_ced_labse_ml_clap,
        atri.audiocaps_ced_labse_cacl,
        atri.audiocaps_ced_labse_kcl,
        m_ltm.audiocaps_resnet38_bert_triplet,
        m_ltm.audiocaps_resnet38_bert_contrastive,
        m_ltm.audiocaps_resnet38_bert_m_ltm,
        m_ltm.audiocaps_resnet38_bert_m_ltm_pot,
        m_ltm.audiocaps_htsat_bert_m_ltm,
        ask.audiocaps_resnet38_bert_ask,
    )
}
