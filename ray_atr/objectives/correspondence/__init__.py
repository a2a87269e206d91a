"""How likely each pair is to be a true one: one file for each method, one line here."""

from ray_atr.common.settings import by_name
from ray_atr.objectives.correspondence.consensus import Consensus
from ray_atr.objectives.correspondence.correspondence import Correspondence, NoCorrespondence
from ray_atr.objectives.correspondence.correspondence import Estimator as Estimator
from ray_atr.objectives.correspondence.correspondence import Oracle as Oracle
from ray_atr.objectives.correspondence.correspondence import TrainingPairs as TrainingPairs
from ray_atr.objectives.correspondence.leave_one_out import LeaveOneOut
from ray_atr.objectives.correspondence.neighbours import NeighbourAgreement
from ray_atr.objectives.correspondence.rematch import Rematch
from ray_atr.objectives.correspondence.self_refining import SelfRefining
from ray_atr.objectives.correspondence.small_loss import SmallLoss
from ray_atr.objectives.correspondence.teacher import Teacher
from ray_atr.objectives.correspondence.teacher import TeacherEmbeddings as TeacherEmbeddings
from ray_atr.objectives.correspondence.transport import Transport

METHODS = (
    NoCorrespondence,
    Oracle,
    SmallLoss,
    LeaveOneOut,
    SelfRefining,
    Consensus,
    NeighbourAgreement,
    Transport,
    Rematch,
    Teacher,
)
CORRESPONDENCES: dict[str, type[Correspondence]] = by_name(METHODS)
