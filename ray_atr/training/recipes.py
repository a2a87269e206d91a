"""Experiments by name: each recipe derives from another one and changes what is different.

The names say data, towers and objective. Those here are of seconds without a GPU; recipes of papers name published checkpoints (a
hub id, or a file to be put under `checkpoints/`) and prepared data sets under `data/`. Every value can be overridden by its path.
"""

from __future__ import annotations

from ray_atr.common.settings import wing
from ray_atr.training.recipe import Recipe

FROM_SCRATCH = Recipe(
    "The synthetic soundscapes and two small towers with random weights: seconds an epoch on one CPU core.",
    {
        "train.epochs": 7,
        "train.batch_size": 64,
        "train.learning_rate": 2e-3,
        "evaluation.validation_captions": 1,
    },
)
SMALL = {
    "quickstart": Recipe(
        "The soundscapes, with the frozen towers that come with the package: only projections are trained, in seconds.",
        {
            "model.audio.checkpoint": "shipped:small_cnn",
            "model.audio.adapt.is_frozen": True,
            "model.text.checkpoint": "shipped:small_transformer",
            "model.text.num_layers": 1,
            "model.text.vocab_size": 2048,
            "model.text.adapt.is_frozen": True,
            "model.projection": "mlp",
            "train.epochs": 10,
        },
        FROM_SCRATCH,
    ),
    "from_scratch": FROM_SCRATCH,
    "vectors": Recipe(
        "Two linear-ReLU-linear heads on a data set that `ray-atr prepare vectors` made: seconds a run on one CPU core.",
        {
            "data.source": "data/vectors",
            "model.audio": "vectors",
            "model.text": "vectors",
            "model.projection": "mlp",
            "model.embedding_width": 256,
            "train.epochs": 20,
            "train.batch_size": 64,
            "train.learning_rate": 2e-3,
        },
    ),
}
RECIPES: dict[str, Recipe] = {**SMALL, **wing("papers.recipes").RECIPES}
