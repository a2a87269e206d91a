"""Indexes that a server opens again after an update, without a pause in its answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from ray_atr.common.caches import remove_cache
from ray_atr.common.settings import refuse
from ray_atr.common.storage import locate
from ray_atr.deploy.index.layout import IndexManifest, read_index_manifest
from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.index.shards import Answer, Given, ShardedIndex, first_of_one_model, read_first

logger = logging.getLogger(__name__)

FOLDER_SECONDS, URL_SECONDS = 1.0, 30.0
"""Pauses between two looks at an index."""
CLOSE_SECONDS = 5.0
"""Longest wait, as the server ends, for an index that is being opened."""


class CurrentIndex:
    """A shard of a `ShardedIndex`: the index at a place, as it is there now. A thread opens it again when it has changed; until
    then, and if the new state is damaged or of another model, questions are answered from the state that is open.
    """

    def __init__(self, place: str, audio: str | None = None, *, pause: float | None = None) -> None:
        """`pause`: seconds between two looks; None: FOLDER_SECONDS, or URL_SECONDS at a URL."""
        self.index = Index.open(place, audio=audio)
        # A link may name another index later.
        self._place, self._audio = locate(place, keeps_links=True), audio
        usual = FOLDER_SECONDS if isinstance(self._place, Path) else URL_SECONDS
        self._pause = usual if pause is None else pause
        self._told = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"index {place}", daemon=True)
        self._thread.start()

    def ask(self, method: Callable[[Index, *Given], Answer], *given: *Given) -> Answer:
        return method(self.index, *given)

    def close(self) -> None:
        """Follow no further update; the index stays open."""
        self._ends.set()
        self._thread.join(CLOSE_SECONDS)

    def _follow(self) -> None:
        pause = self._pause
        while not self._ends.wait(pause):
            began, pause = time.monotonic(), self._pause
            try:
                self._renew()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next state may be sound
                self._tell(str(error))
                # A large index that stays damaged is not read without a pause.
                pause = max(pause, 10 * (time.monotonic() - began))

    def _renew(self) -> None:
        manifest, before = read_index_manifest(self._place), self.index
        if manifest != before.manifest:
            self._require_its_model(manifest)
            opened = Index.open(self._place, audio=self._audio)
            # Another index may have come to this place meanwhile.
            self._require_its_model(opened.manifest)
            self.index = opened
            if not isinstance(self._place, Path):
                # Otherwise each update would leave a copy of the whole index. Questions on their way still read it.
                remove_cache(before.folder)
        self._told = ""

    def _require_its_model(self, manifest: IndexManifest) -> None:
        if manifest.model != self.index.manifest.model:
            allowed = "an index of the model that the server began with: start it again"
            raise refuse("index", str(self._place), allowed)

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            logger.warning("an index cannot be opened again; answers are from its earlier state: %s", reason)
        self._told = reason


@contextmanager
def open_current(
    places: Sequence[str], *, checkpoint: str | None = None, audio: str | None = None, pause: float | None = None
) -> Iterator[ShardedIndex]:
    """`open_shards` for a server: answers follow updates of the indexes. ValueError if these are not of one model."""
    read_first(places)
    with ExitStack() as stack:
        shards = [stack.enter_context(closing(CurrentIndex(place, audio, pause=pause))) for place in places]
        first = first_of_one_model(places, [shard.index.manifest for shard in shards])
        yield ShardedIndex(shards, first, checkpoint=checkpoint)
