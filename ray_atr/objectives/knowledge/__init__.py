"""Knowledge from outside the batch: one file for each variant, one line here."""

from ray_atr.common.settings import by_name
from ray_atr.objectives.knowledge.ance import Ance
from ray_atr.objectives.knowledge.ask import Ask
from ray_atr.objectives.knowledge.knowledge import Knowledge, NoKnowledge
from ray_atr.objectives.knowledge.moco import Moco
from ray_atr.objectives.knowledge.nnclr import Nnclr

KNOWLEDGE: dict[str, type[Knowledge]] = by_name((NoKnowledge, Ask, Moco, Nnclr, Ance))
