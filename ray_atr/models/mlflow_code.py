"""What MLflow runs to load a logged retriever: the model comes from this file, and nothing is unpickled."""

from mlflow.models import set_model

from ray_atr.models.mlflow_model import RetrieverModel

set_model(RetrieverModel())
