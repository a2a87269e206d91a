"""The file that MLflow runs to load a logged retriever, so that nothing is unpickled."""

from mlflow.models import set_model

from ray_atr.models.mlflow_model import RetrieverModel

set_model(RetrieverModel())
