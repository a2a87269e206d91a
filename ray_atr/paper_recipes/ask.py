"""ASK (Fu et al. 2025, arXiv 2512.19703): a knowledge base that refreshes itself, over two pairs of towers, in English.

From section 5.1: Adam. ResNet38 and BERT train for 50 epochs in batches of 32 on AudioCaps and 24 on Clotho, and the
rate is divided by ten every 20 epochs. CED-Base and SONAR train for 10 epochs and the rate is divided every 4.

Not printed in the text that we have, and no code is released: the initial rates (1e-4 is that of ML-ACT, Mei et al.
2022, whose setting the paper keeps in everything else; 5e-5 that of WavCaps' fine-tuning, on whose code ML-CLAP's is
built); the batch of CED-Base and SONAR (ATRI's 24); neighbours, prototypes and ratios (the defaults of `Ask`).
"""

from __future__ import annotations

from ray_atr.paper_recipes import atri, m_ltm
from ray_atr.recipes.recipe import Recipe

STEPS = {
    "objective": "ask",
    # Training waits for each refresh, so that a new base is the current encoders' (Eq. 14).
    "objective.knowledge.refresh_lag": 0,
    "train.schedule": "step",
    "train.step_factor": 0.1,
}
RESNET38 = {**STEPS, "train.epochs": 50, "train.step_epochs": 20, "train.batch_size": 32, "train.learning_rate": 1e-4}
CED = {
    **STEPS,
    "data.languages": "eng",
    "train.epochs": 10,
    "train.step_epochs": 4,
    "train.learning_rate": 5e-5,
    "evaluation.select_by": "text_to_audio/eng/recall_at_1",
}

audiocaps_resnet38_bert_ask = Recipe(
    "AudioCaps, NT-Xent with injection, realignment and modulation from the training set's own knowledge base.",
    RESNET38,
    m_ltm.AUDIOCAPS,
)
clotho_resnet38_bert_ask = Recipe("Clotho, in batches of 24.", {**RESNET38, "train.batch_size": 24}, m_ltm.CLOTHO)
audiocaps_ced_sonar_ask = Recipe("AudioCaps with CED-Base and SONAR, in English.", CED, atri.ML_CLAP)
clotho_ced_sonar_ask = Recipe("Clotho with CED-Base and SONAR, in English.", CED, atri.CLOTHO_ML_CLAP)
