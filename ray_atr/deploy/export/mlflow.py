"""Export of a retriever as the folder of an MLflow model, for `mlflow.pyfunc.load_model` and `mlflow models serve`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ray_atr.common.settings import refuse
from ray_atr.common.storage import Location, fetched
from ray_atr.models.retriever import Retriever


def require(retriever: Retriever) -> None:
    """ValueError for a retriever of vectors made elsewhere. Any other can be an MLflow model, which has this package's code."""
    if retriever.settings.audio.name == "vectors":
        raise refuse("--to mlflow", "model.audio vectors, which encodes nothing itself", "an encoder of audio")


def write(retriever: Retriever, folder: Path, *, checkpoint: Location) -> dict[str, Any]:
    """Write the model that `report --register` logs into a folder; returns further entries of export.json. OSError if the disk
    is full.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    from ray_atr.models.mlflow_model import hush_mlflow, model_parts, require_path

    require_path(folder)
    hush_mlflow()
    with fetched(checkpoint) as weights:
        try:
            mlflow.pyfunc.save_model(str(folder / "model"), **model_parts(Path(weights)))
        except (MlflowException, shutil.Error) as error:
            # If the disk is full, `shutil` has a line for every file, and MLflow blames the code that it copies.
            cause = error if isinstance(error, shutil.Error) else error.__context__
            if not isinstance(cause, OSError):
                raise
            reason = cause.args[0][0][-1] if isinstance(cause, shutil.Error) else cause
            raise OSError(f"{folder / 'model'} could not be written: {reason}") from error
    for made in (folder / "model").rglob("__pycache__"):
        shutil.rmtree(made)
    return {}
