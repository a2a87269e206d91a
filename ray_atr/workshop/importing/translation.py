"""Filling missing languages by machine translation, and checking translations by translating them back.

A sequence-to-sequence model of many languages (NLLB or M2M100, by folder or hub id) translates the English captions of every
clip that lacks a language. The new data set says in each row, and in the manifest, which languages a machine made.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics import CHRF
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from ray_atr.common.jobs import Resources
from ray_atr.common.language_codes import normalise, require_language, tag_among
from ray_atr.common.progress import CountProgress, silent
from ray_atr.common.sampling import hashes
from ray_atr.common.settings import counted, refuse
from ray_atr.common.storage import locate
from ray_atr.common.table import text_table
from ray_atr.data.caption_vectors import has_vectors
from ray_atr.data.schema import Clip, to_clips
from ray_atr.data.shards import (
    Manifest,
    Shard,
    in_shards,
    iterate_rows,
    order_shards,
    read_manifest,
    read_shard,
    write_shard,
)
from ray_atr.workshop.importing.import_options import Translation
from ray_atr.workshop.importing.session import unfinished

Translate = Callable[[Sequence[str], str, str], list[str]]
"""texts, source language, target language -> texts."""
Similarity = Callable[[Sequence[str], Sequence[str]], np.ndarray]
"""back-translated texts, originals -> similarity of each, [N] in [0, 1] or, for embeddings, [-1, 1]."""
WORST = 3
"""Back-translations of a language that are shown, the least similar."""
EMBEDDED_TOGETHER = 32


class Translator:
    """A translation model in memory. Deterministic: beam search, no sampling. Raises ValueError if the model is not
    there or does not know a language.
    """

    def __init__(self, options: Translation) -> None:
        self.options = options
        self.tokenizer = translation_tokenizer(options.model)
        self.token_of = language_tokens(self.tokenizer, options)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = _pretrained(AutoModelForSeq2SeqLM, options.model, "model", "an NLLB or M2M100 model")
        self.model = model.to(self.device).eval()
        # Language tokens are not always marked as special, and must not end up in a caption.
        self.not_text = {*self.tokenizer.all_special_ids, *getattr(self.tokenizer, "lang_token_to_id", {}).values()}

    def __call__(self, texts: Sequence[str], source: str, target: str) -> list[str]:
        """The texts in another language, in their order."""
        translated = [""] * len(texts)
        self.tokenizer.src_lang = self.token_of[source][0]
        # Texts of similar length together, so that little of a batch is padding.
        by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(texts), self.options.batch_size):
            rows = by_length[start : start + self.options.batch_size]
            batch = self.tokenizer([texts[row] for row in rows], return_tensors="pt", padding=True, truncation=True)
            with torch.inference_mode():
                tokens = self.model.generate(
                    **batch.to(self.device),
                    forced_bos_token_id=self.token_of[target][1],
                    num_beams=self.options.num_beams,
                    do_sample=False,
                    max_new_tokens=self.options.max_new_tokens,
                )
            for row, ids in zip(rows, tokens.tolist(), strict=True):
                text = [token for token in ids if token not in self.not_text]
                translated[row] = normalise(self.tokenizer.decode(text, skip_special_tokens=True)) if text else ""
        return translated


def translation_tokenizer(model: str) -> Any:
    """The tokeniser of a translation model. ValueError if there is none."""
    return _pretrained(AutoTokenizer, model, "model", "an NLLB or M2M100 model by folder or hub id")


def _pretrained(kind: Any, name: str, path: str, allowed: str) -> Any:
    has_bars = is_progress_bar_enabled()
    if os.path.isdir(name):
        # Their progress bar is shown beside ours only for a download.
        disable_progress_bar()
    try:
        return kind.from_pretrained(name)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise refuse(path, name, f"{allowed} ({first_line})") from None
    finally:
        if has_bars:
            enable_progress_bar()


def language_tokens(tokenizer: Any, options: Translation) -> dict[str, tuple[str, int]]:
    """The tokeniser's name of each language, and the id of the token that begins a text in it. ValueError for an unknown one."""
    tokens: dict[str, tuple[str, int]] = {}
    for code in {*options.languages, options.source_language}:
        language = require_language(code)
        if hasattr(tokenizer, "get_lang_id"):  # M2M100
            ids, token_of = tokenizer.lang_code_to_id, tokenizer.get_lang_id
            name = next((name for name in (language.iso_639_1, language.code) if name in ids), None)
        else:
            name, token_of = tag_among(code, tokenizer.get_vocab()), tokenizer.convert_tokens_to_ids
        if name is None:
            raise refuse("languages", code, f"languages that {options.model} knows")
        tokens[code] = name, int(token_of(name))
    return tokens


def fill_clips(clips: Sequence[Clip], translate: Translate, options: Translation, blank: Counter[str]) -> list[Clip]:
    """The clips with every language that they lacked, translated from their captions in the source language. If a translation is
    blank, the clip stays without that language, since caption j must be the same sentence in every language; `blank` counts
    such clips. A clip without captions in the source language stays as it is.
    """
    captions = [dict(clip.captions) for clip in clips]
    translated = [list(clip.translated) for clip in clips]
    for target in options.languages:
        rows = [row for row, held in enumerate(captions) if target not in held and options.source_language in held]
        texts = [text for row in rows for text in captions[row][options.source_language]]
        if not texts:
            continue
        answers = iter(translate(texts, options.source_language, target))
        for row in rows:
            translations = [next(answers) for _ in captions[row][options.source_language]]
            if all(translations):
                captions[row][target] = tuple(translations)
                translated[row].append(target)
            else:
                blank[target] += 1
    filled = zip(clips, captions, translated, strict=True)
    return [dataclasses.replace(clip, captions=held, translated=tuple(made)) for clip, held, made in filled]


def _shard_translator(
    data: str, target: str, options: Translation, translate: Translate | None
) -> Callable[[int], dict[str, Any]]:
    """A function that writes the shard at a position in the manifest, with missing languages filled, and returns its note.
    One model and one batch of rows are in memory.
    """
    manifest, translate = read_manifest(data), translate or Translator(options)
    files = _own_files(manifest)

    def write(index: int) -> dict[str, Any]:
        shard, file, blank = manifest.shards[index], files[index], Counter[str]()
        batches = (fill_clips(to_clips(batch), translate, options, blank) for batch in read_shard(manifest, shard))
        written = write_shard(locate(target, keeps_links=True), file, shard.split, chain.from_iterable(batches))
        assert written is not None, f"{shard.file} has no rows"
        return {"shard": dataclasses.asdict(dataclasses.replace(written, part=shard.part)), "blank": dict(blank)}

    return write


def _own_files(manifest: Manifest) -> list[str]:
    """The files of the shards of a copy; the parts of a joined data set have files of one name."""
    return [file for file, _ in in_shards(manifest.shards, 1)]


def fill_languages(
    data: str | Path,
    out: str | Path,
    options: Translation,
    *,
    translate: Translate | None = None,
    progress: CountProgress = silent,
) -> Manifest:
    """A copy of a data set with every language filled; a stopped run continues with the shards that are missing.
    `translate` replaces the model, and is called in this process. ValueError if the model or a language is not there, or if
    no clip has captions to translate from.
    """
    manifest = read_manifest(data)
    if has_vectors(manifest.folder):
        raise refuse("data", str(data), "a data set of audio; in one of vectors, each caption needs a vector")
    if not manifest.num_captions(options.source_language):
        allowed = "languages of the data: " + ", ".join(manifest.languages)
        raise refuse("source_language", options.source_language, allowed)
    if translate is None:
        language_tokens(translation_tokenizer(options.model), options)
    model = Path(options.model)
    files = sorted((path.name, path.stat().st_size) for path in model.iterdir()) if model.is_dir() else []
    asked = [options.model, options.languages, options.source_language, options.num_beams, options.max_new_tokens]
    origin = hashlib.sha256(json.dumps([manifest.hash, asked, files]).encode()).hexdigest()
    with unfinished(out) as state:
        if held := state.already_made(origin):
            return held
        notes, done = {}, 0
        worker = partial(_shard_translator, manifest.folder, str(state.target), options, translate)
        actors = Resources(options.cpus_per_actor, options.gpus_per_actor, options.actors, setting="actors")
        here = translate is not None or options.ray == "never"
        jobs = {file: index for index, file in enumerate(_own_files(manifest))}
        for index, note in state.written(jobs, worker, None if here else actors):
            notes[index] = note
            done += manifest.shards[index].num_rows
            progress(done, manifest.num_rows)
        blank = sum((Counter(note["blank"]) for note in notes.values()), Counter())
        lines = [f"languages filled from {options.source_language} by {model.name}"]
        lines += [
            f"{code}: {counted(number, 'clip stays', 'clips stay')} without, a translation was blank"
            for code, number in blank.items()
        ]
        shards = order_shards(Shard(**note["shard"]) for note in notes.values())
        filled = dataclasses.replace(manifest, shards=shards, parts=(), notes=(*manifest.notes, *lines), origin=origin)
        return state.finish(filled)


# --- back-translation


@dataclass(frozen=True)
class BackTranslation:
    """How close one language's captions come to the English ones when they are translated back."""

    language: str
    is_machine_made: bool
    similarity: np.ndarray
    worst: list[tuple[float, str, str, str]]
    """similarity, English, caption, caption translated back."""

    @property
    def mean(self) -> float:
        return float(self.similarity.mean())


def back_translate(
    manifest: Manifest,
    split: str,
    translate: Translate,
    languages: Sequence[str],
    *,
    samples: int = 200,
    similarity: Similarity | None = None,
    source_language: str = "eng",
) -> list[BackTranslation]:
    """Translate a sample of captions back and compare with the originals, language by language. The check of Yin et al.
    2025 (ACL), Appendix A, with any measure of similarity: chrF of the texts by default, or the cosine of sentence
    embeddings. The same captions are drawn for every language that has them. ValueError if no clip of the split has as many
    captions in a language as in the source language.
    """
    results = []
    pairs = _sample(manifest, split, [code for code in languages if code != source_language], samples, source_language)
    for language, rows in pairs.items():
        if not rows:
            compared_with = f"as many captions as in {source_language} in a clip of split {split}"
            raise refuse(
                "languages",
                language,
                f"languages with {compared_with}: {', '.join(filter(pairs.get, pairs)) or 'none'}",
            )
        originals, captions = [row[1] for row in rows], [row[2] for row in rows]
        back = translate(captions, language, source_language)
        compared = similarity(back, originals) if similarity else list(map(chrf, back, originals))
        values = np.asarray(compared, np.float64)
        order = np.argsort(values, kind="stable")[:WORST]
        worst = [(float(values[i]), originals[i], captions[i], back[i]) for i in order]
        results.append(BackTranslation(language, any(row[3] for row in rows), values, worst))
    return results


def _sample(
    manifest: Manifest, split: str, languages: Sequence[str], samples: int, source_language: str
) -> dict[str, list[tuple[int, str, str, bool]]]:
    """(hash, original, caption, made by machine) of the captions with the smallest hashes, a list a language."""
    chosen: dict[str, list[tuple[int, str, str, bool]]] = {code: [] for code in languages}
    for row in iterate_rows(manifest, split, ["clip_id", "captions", "translated"]):
        originals = row["captions"].get(source_language, [])
        order = hashes([f"{row['clip_id']}/{j}" for j in range(len(originals))], 0, "back-translation")
        for code in languages:
            texts = row["captions"].get(code, [])
            if len(texts) == len(originals):
                made = code in row["translated"]
                chosen[code] += [(int(order[j]), originals[j], texts[j], made) for j in range(len(texts))]
            if len(chosen[code]) > 4 * samples:
                chosen[code] = sorted(chosen[code])[:samples]
    return {code: sorted(rows)[:samples] for code, rows in chosen.items()}


def chrf(translation: str, wanted: str) -> float:
    """Character n-gram F-score of a text against a reference, in [0, 1]; white space does not count. M. Popović, "chrF:
    character n-gram F-score for automatic MT evaluation", WMT 2015: n = 1 ... 6, recall weighs 4 times.
    """
    return float(CHRF().sentence_score(translation, [wanted]).score) / 100


def embedding_similarity(encoder: str) -> Similarity:
    """Cosine of mean-pooled sentence embeddings by a transformers encoder (folder or hub id)."""
    what = "embedder", "a text encoder by folder or hub id"
    tokenizer, model = _pretrained(AutoTokenizer, encoder, *what), _pretrained(AutoModel, encoder, *what).eval()

    def embed(texts: Sequence[str]) -> np.ndarray:
        parts = []
        for start in range(0, len(texts), EMBEDDED_TOGETHER):
            some = list(texts[start : start + EMBEDDED_TOGETHER])
            batch = tokenizer(some, return_tensors="pt", padding=True, truncation=True)
            with torch.inference_mode():
                states = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            pooled = (states * mask).sum(dim=1) / mask.sum(dim=1)
            parts.append(torch.nn.functional.normalize(pooled, dim=1).numpy())
        return np.concatenate(parts)

    return lambda translations, wanted: np.asarray((embed(translations) * embed(wanted)).sum(axis=1))


def back_translation_table(results: Sequence[BackTranslation]) -> list[str]:
    """Lines of a table: language, captions, mean and lowest tenth of the similarity, then the worst examples."""
    rows = []
    for result in results:
        numbers = (result.mean, np.quantile(result.similarity, 0.1), result.similarity.min())
        made_by, count = "machine" if result.is_machine_made else "human", f"{len(result.similarity):,}"
        rows.append([result.language, made_by, count, *(f"{number:.3f}" for number in numbers)])
    lines = text_table(["language", "made by", "captions", "mean", "10%", "lowest"], rows)
    for result in results:
        lines += ["", f"{result.language}, the farthest:"]
        for value, original, caption, back in result.worst:
            lines += [f"  {value:.3f}  {original}", f"         {caption}", f"         {back}"]
    return lines
