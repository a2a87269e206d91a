"""AudioCaps with the human Japanese captions as two tasks of MTEB, ready for its folder `mteb/tasks/retrieval/jpn`.

What is left to do is in the README beside it: upload the two data sets, and put their commits below.
"""

from __future__ import annotations

from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

_BIBTEX = r"""
@inproceedings{kim2019audiocaps,
  author = {Kim, Chris Dongjoo and Kim, Byeongchang and Lee, Hyunmin and Kim, Gunhee},
  booktitle = {Proceedings of the 2019 Conference of the North American Chapter of the Association for Computational Linguistics: Human Language Technologies, Volume 1 (Long and Short Papers)},
  pages = {119--132},
  title = {Audiocaps: Generating captions for audios in the wild},
  year = {2019},
}
"""


class AudioCapsJaT2ARetrieval(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="AudioCapsJaT2ARetrieval",
        description=(
            "Retrieve the sound that a Japanese caption describes: the test split of AudioCaps, whose five captions a clip "
            "were translated from English by a native speaker of Japanese."
        ),
        reference="https://audiocaps.github.io/",
        dataset={"path": "mteb/audiocaps_ja_t2a", "revision": "0000000000000000000000000000000000000000"},
        type="Any2AnyRetrieval",
        category="t2a",
        modalities=["text", "audio"],
        eval_splits=["test"],
        eval_langs=["jpn-Jpan", "zxx-Zxxx"],
        main_score="hit_rate_at_5",
        date=("2018-01-01", "2023-11-10"),
        domains=["AudioScene", "Written"],
        task_subtypes=["Caption Pairing"],
        license="apache-2.0",
        annotations_creators="human-annotated",
        dialect=[],
        sample_creation="human-translated",
        bibtex_citation=_BIBTEX,
        adapted_from=["AudioCapsT2ARetrieval"],
    )


class AudioCapsJaA2TRetrieval(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="AudioCapsJaA2TRetrieval",
        description=(
            "Retrieve the Japanese captions of a sound: the test split of AudioCaps, whose five captions a clip were "
            "translated from English by a native speaker of Japanese."
        ),
        reference="https://audiocaps.github.io/",
        dataset={"path": "mteb/audiocaps_ja_a2t", "revision": "0000000000000000000000000000000000000000"},
        type="Any2AnyRetrieval",
        category="a2t",
        modalities=["text", "audio"],
        eval_splits=["test"],
        eval_langs=["jpn-Jpan", "zxx-Zxxx"],
        main_score="hit_rate_at_5",
        date=("2018-01-01", "2023-11-10"),
        domains=["AudioScene", "Written"],
        task_subtypes=["Caption Pairing"],
        license="apache-2.0",
        annotations_creators="human-annotated",
        dialect=[],
        sample_creation="human-translated",
        bibtex_citation=_BIBTEX,
        adapted_from=["AudioCapsA2TRetrieval"],
    )
