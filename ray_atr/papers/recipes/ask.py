"""ASK (Fu et al. 2025, arXiv 2512.19703): a knowledge base that refreshes itself, over two pairs of towers, in English.

From section 5.1: Adam. ResNet38 and BERT train for 50 epochs in batches of 32 on AudioCaps and 24 on Clotho, and the
rate is divided by ten every 20 epochs. CED-Base and SONAR train for 10 epochs and the rate is divided every 4.

From its other sections, where the defaults of `Ask` are otherwise:

- own clusters for the texts ("an identical procedure is applied to the text embeddings", 4.1);
- enhanced embeddings stay as they are (after Eq. 10 their derivative by what was retrieved is a constant, which that of
  a normalised embedding is not);
- R is a regulariser with its gradient (4.6, appendix G): the multiplier is not detached;
- a refresh every second epoch. T is one number for all models and is not printed; "overly frequent updates degrade
  performance" (5.3) rules out the most frequent, and two is the next, which leaves five bases in ten epochs;
- training waits for each refresh, so that a new base is the current encoders' (Eq. 14).

Not printed in the text that we have, and no code is released: the initial rates (1e-4 is that of ML-ACT, Mei et al.
2022, whose setting the paper keeps in everything else; 5e-5 that of WavCaps' fine-tuning, on whose code ML-CLAP's is
built); the batch of CED-Base and SONAR (ATRI's 24); neighbours, prototypes and ratios (the defaults of `Ask`).

The base is encoded on the worker's own GPU, of which both take a share: on a CPU one refresh of AudioCaps takes hours,
and training waits for it. With .6 of a GPU for a worker two workers never share one, and an encoder fits beside each.
"""

from __future__ import annotations

from ray_atr.papers.recipes import atri, m_ltm
from ray_atr.training.recipes.recipe import Recipe

STEPS = {
    "objective": "ask",
    "objective.knowledge.refresh_lag": 0,
    "objective.knowledge.refresh_every_epochs": 2,
    "objective.knowledge.separate_text_clusters": True,
    "objective.knowledge.renormalise": False,
    "objective.knowledge.detach_reliability": False,
    "scaling.gpus_per_worker": 0.6,
    "scaling.gpus_per_encoder": 0.4,
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
