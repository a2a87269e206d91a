"""The papers' systems, as named points of the grid scheme x pair loss x knowledge."""

from __future__ import annotations

from typing import Any

from ray_atr.objectives.knowledge.ance import Ance
from ray_atr.objectives.knowledge.ask import Ask
from ray_atr.objectives.knowledge.moco import Moco
from ray_atr.objectives.knowledge.nnclr import Nnclr
from ray_atr.objectives.objective import Objective
from ray_atr.objectives.pairs import Contrastive, ContrastiveEntropic, LearningToMatch, PartialLearningToMatch, Triplet
from ray_atr.objectives.schemes import CoAnchor, English, OneToK, Random
from ray_atr.settings import nearest, refuse

PRESETS: dict[str, Objective] = {
    # ATRI (Yin et al. 2025): how eight languages share one audio encoder.
    "ml_clap": Objective(scheme=Random(), pair=Contrastive()),
    "cacl": Objective(scheme=CoAnchor(), pair=Contrastive()),
    "kcl": Objective(scheme=OneToK(), pair=Contrastive()),
    # m-LTM (Luong et al. 2024): English, under noisy pairs.
    "triplet": Objective(scheme=English(), pair=Triplet()),
    "contrastive": Objective(scheme=English(), pair=Contrastive()),
    "contrastive_entropic": Objective(scheme=English(), pair=ContrastiveEntropic()),
    "m_ltm": Objective(scheme=English(), pair=LearningToMatch(metric="factored")),
    "m_ltm_pot": Objective(scheme=English(), pair=PartialLearningToMatch(metric="factored")),
    # ASK (Fu et al. 2025): a knowledge base that refreshes itself; and the baselines of its Appendix E.
    "ask": Objective(scheme=English(), pair=Contrastive(), knowledge=Ask()),
    "moco": Objective(scheme=English(), pair=Contrastive(), knowledge=Moco()),
    "nnclr": Objective(scheme=English(), pair=Contrastive(), knowledge=Nnclr()),
    "ance": Objective(scheme=English(), pair=Contrastive(), knowledge=Ance()),
}


def preset(name: str, **settings: Any) -> Objective:
    """A paper's objective by name, with any of its settings changed: `preset("m_ltm_pot", transport_mass=0.8)`.

    Raises ValueError where the name or a setting is unknown, naming the nearest.
    """
    if name not in PRESETS:
        raise refuse("preset", name, "one of " + ", ".join(PRESETS), nearest(name, PRESETS))
    return PRESETS[name].with_settings(**settings)
