"""The papers' systems: named choices of scheme, pair loss and knowledge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray_atr.common.settings import require_known
from ray_atr.objectives.knowledge import Ance, Ask, Moco, Nnclr
from ray_atr.objectives.objective import Objective
from ray_atr.objectives.pairs import Contrastive, ContrastiveEntropic, LearningToMatch, PartialLearningToMatch, Triplet
from ray_atr.objectives.schemes import Cacl, Kcl, MlClap


@dataclass(frozen=True)
class Preset:
    """A paper's system by name, with its colour and marker in figures. Tables and figures have the order of PRESET_TABLE."""

    name: str
    objective: Objective
    paper: str
    colour: str
    marker: str


M_LTM = "Luong et al. 2024"
ATRI = "Yin et al. 2025"
ASK = "Fu et al. 2025"

# Colours of Okabe and Ito's and Tol's palettes, without their yellows (too light for a line on white). Each system keeps its
# own in every figure, and no two share one, so that bars can be told apart as well as lines.
PRESET_TABLE = (
    # English, under noisy pairs.
    Preset("triplet", Objective(pair=Triplet()), M_LTM, "#7f7f7f", "v"),
    Preset("contrastive", Objective(pair=Contrastive()), M_LTM, "#0072B2", "o"),
    Preset("contrastive_entropic", Objective(pair=ContrastiveEntropic()), M_LTM, "#332288", "D"),
    # The paper's M: full, learned, projected to the positive semi-definite cone. Then the metrics that it is compared with.
    Preset("m_ltm", Objective(pair=LearningToMatch()), M_LTM, "#E69F00", "s"),
    Preset("m_ltm_euclidean", Objective(pair=LearningToMatch(metric="euclidean")), M_LTM, "#8C6D1F", "s"),
    Preset("m_ltm_factored", Objective(pair=LearningToMatch(metric="factored")), M_LTM, "#C49A6C", "s"),
    Preset("m_ltm_pot", Objective(pair=PartialLearningToMatch()), M_LTM, "#D55E00", "^"),
    Preset("m_ltm_pot_euclidean", Objective(pair=PartialLearningToMatch(metric="euclidean")), M_LTM, "#8B2E16", "^"),
    Preset("m_ltm_pot_factored", Objective(pair=PartialLearningToMatch(metric="factored")), M_LTM, "#F2A07B", "^"),
    # How eight languages share one audio encoder.
    Preset("ml_clap", Objective(scheme=MlClap()), ATRI, "#56B4E9", "p"),
    Preset("cacl", Objective(scheme=Cacl()), ATRI, "#CC79A7", "D"),
    Preset("kcl", Objective(scheme=Kcl()), ATRI, "#009E73", "P"),
    # The baselines of its Appendix E, and a knowledge base that refreshes itself.
    Preset("moco", Objective(knowledge=Moco()), ASK, "#999933", "o"),
    Preset("nnclr", Objective(knowledge=Nnclr()), ASK, "#44AA99", "o"),
    Preset("ance", Objective(knowledge=Ance()), ASK, "#000000", "o"),
    Preset("ask", Objective(knowledge=Ask()), ASK, "#882255", "X"),
)
PRESETS: dict[str, Objective] = {preset.name: preset.objective for preset in PRESET_TABLE}


def preset(name: str, **settings: Any) -> Objective:
    """A paper's objective by name, with settings changed: `preset("m_ltm_pot", transport_mass=0.8)`.

    name      one of PRESETS; docs/objectives.md says which one when.
    settings  of any of the objective's four parts, by their bare names.

    ValueError, with the nearest name, for an unknown preset or setting.

    When: a paper's objective is wanted, in a loop of your own or for `ray_atr.train`.
    Related: `Objective` puts four parts together.

    >>> from ray_atr.objectives import preset
    >>> preset("kcl").scheme.name, preset("m_ltm_pot", transport_mass=0.8).pair.transport_mass
    ('kcl', 0.8)
    """
    require_known("preset", name, PRESETS)
    return PRESETS[name].with_settings(**settings)
