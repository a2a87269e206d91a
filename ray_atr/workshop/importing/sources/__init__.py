"""One file a data set: from the files people have on disk to clips."""

from ray_atr.common.settings import by_name
from ray_atr.workshop.importing.sources.audiocaps import AudioCaps
from ray_atr.workshop.importing.sources.clotho import Clotho
from ray_atr.workshop.importing.sources.esc50 import Esc50, Esc50Clotho
from ray_atr.workshop.importing.sources.freesound_labels import Arca23k, FsdNoisy18k
from ray_atr.workshop.importing.sources.huggingface import HuggingFace
from ray_atr.workshop.importing.sources.multilingual import Multilingual
from ray_atr.workshop.importing.sources.source import Entry, Source
from ray_atr.workshop.importing.sources.table import TableSource
from ray_atr.workshop.importing.sources.wavcaps import WavCaps
from ray_atr.workshop.importing.sources.webdataset import WebDataset

_TABLES = (Esc50, Esc50Clotho, AudioCaps, Clotho, Multilingual, WavCaps, FsdNoisy18k, Arca23k, TableSource)
SOURCES: dict[str, type[Source]] = by_name((*_TABLES, HuggingFace, WebDataset))

__all__ = ["SOURCES", "Entry", "Source"]
