"""Runs in languages that have no file of their own: Swedish and Korean, imported from a table, trained and evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ray_atr.common.override import override
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.run import evaluate
from ray_atr.models.retriever import Retriever
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.training.languages import check_languages, with_languages
from ray_atr.training.ray_train import run_trial
from ray_atr.workshop.importing.check import check_data_set
from ray_atr.workshop.importing.plan import Import, import_data_set
from ray_atr.workshop.importing.sources.table import TableSource
from tests.support.clips_on_disk import write_tone
from tests.support.tiny import NOTES, make_data, tiny

SWEDISH = ("en låg ton", "en mellanhög ton", "en hög ton", "en mycket hög ton")
KOREAN = ("낮은 소리", "중간 소리", "높은 소리", "아주 높은 소리")


def import_tones(root: Path, languages: dict[str, tuple[str, ...]]) -> Path:
    """Tones with captions in the languages, which the table names by any code."""
    rows: list[Any] = []
    for split, count in (("train", 16), ("val", 8), ("test", 8)):
        for index in range(count):
            path = write_tone(root / "in" / split / f"{index:02d}.wav", 0.4, 200.0 * 2 ** (index % 4) + len(rows))
            for code, words in languages.items():
                text = f"{words[index % 4]}, {index}"
                rows.append({"path": f"{split}/{path.name}", "caption": text, "language": code, "split": split})
    (root / "in" / "captions.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    import_data_set(TableSource(source=str(root / "in")), root / "set", options=Import(name="tones"))
    return root / "set"


def of(data: Path, **changes: str) -> Experiment:
    return override(tiny(data, **changes), {"data.languages": "", "scaling.workers": 0, "scaling.ray_data": False})


@pytest.mark.slow
@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize(
    ("languages", "scheme", "codes"),
    [
        ({"sv": SWEDISH}, "english", ("swe",)),
        ({"swe": SWEDISH, "ko": KOREAN}, "kcl", ("kor", "swe")),
        ({"ko": KOREAN}, "ml_clap", ("kor",)),
    ],
)
def test_a_set_in_any_language_is_imported_checked_trained_and_evaluated(
    tmp_path: Path,
    languages: dict[str, tuple[str, ...]],
    scheme: str,
    codes: tuple[str, ...],
) -> None:
    data = import_tones(tmp_path, languages)
    assert check_data_set(str(data)).is_fit
    experiment = of(data, objective__scheme=scheme, train__epochs=1)
    assert with_languages(experiment).data.languages == codes
    check_experiment(experiment)
    reports: list[dict[str, object]] = []
    run_trial(experiment, tmp_path / "trial", tmp_path / "home", [], reports.append)
    assert any(f"text_to_audio/{codes[0]}/recall_at_1" in report for report in reports)
    retriever = Retriever.from_pretrained(tmp_path / "trial" / "best")
    assert retriever.encode_text(["안녕", "hej"], ["ko", "sv"]).shape == (2, 16)
    # Figures take most of an evaluation: one is drawn of both.
    is_drawn = len(codes) > 1
    options = EvaluationOptions(data=str(data), languages=tuple(languages), draws=5, mlflow=False, figures=is_drawn)
    page = evaluate(
        [tmp_path / "trial" / "best"],
        options,
        encoding=Encoding(ray="never"),
        out=tmp_path / "out",
        echo=lambda message: None,
    ).page
    assert {name.split("/")[1] for name in page.metrics if name.startswith("text_to_audio/")} >= set(codes)


def test_unset_languages_are_those_of_the_set(tmp_path: Path) -> None:
    data = import_tones(tmp_path, {"swe": SWEDISH, "kor": KOREAN})
    found = with_languages(of(data))
    assert found.data.languages == ("kor", "swe")
    assert with_languages(override(of(data), {"data.languages": "sv"})).data.languages == ("swe",)
    english = make_data(tmp_path / "tones")
    assert with_languages(of(english)).data.languages == ("eng", "fra")


@pytest.mark.parametrize("scheme", ["english", "cacl", "random_mixture"])
def test_a_scheme_with_an_anchor_asks_for_english(tmp_path: Path, scheme: str) -> None:
    data = import_tones(tmp_path, {"swe": SWEDISH, "kor": KOREAN})
    with pytest.raises(ValueError, match=rf"objective.scheme: got '{scheme} without English \(kor, swe\)'; allowed"):
        check_experiment(of(data, objective__scheme=scheme))


def test_english_comes_first_however_it_is_written() -> None:
    settings = override(Experiment(), {"data.languages": "ko,fr,en"}).data
    assert settings.languages == ("eng", "kor", "fra")
    assert len(NOTES) == len(SWEDISH) == len(KOREAN)


@pytest.mark.usefixtures("own_home")
def test_a_language_without_captions_in_the_training_split_is_not_trained(tmp_path: Path) -> None:
    """What the message says can be trained is trained: a scheme with an anchor wants one language where there is no English."""
    table = tmp_path / "in" / "captions.jsonl"
    rows: list[Any] = []
    for split, count in (("train", 16), ("val", 8), ("test", 8)):
        for index in range(count):
            path = write_tone(tmp_path / "in" / split / f"{index:02d}.wav", 0.4, 200.0 + len(rows))
            untrained = "" if split == "train" else f"tone {index}"
            texts = {"eng": untrained, "deu": f"Ton {index}", "swe": f"ton {index}", "kor": untrained}
            rows.append({"path": f"{split}/{path.name}", "split": split, **texts})
    table.write_text("\n".join(map(json.dumps, rows)))
    columns = ("eng", "deu", "swe", "kor")
    data = Path(
        import_data_set(TableSource(source=str(tmp_path / "in"), caption_column=columns), tmp_path / "set").folder
    )
    for scheme, languages, untrained, remedy in (
        ("english", "eng,deu", "eng", "deu"),
        ("english", "eng,deu,kor", "eng", "deu"),
        ("english", "eng,deu,swe", "eng", "with one of deu, swe"),
        ("cacl", "eng,deu,swe", "eng", "with one of deu, swe"),
        ("kcl", "eng,deu,swe,kor", "eng, kor", "deu,swe"),
    ):
        experiment = override(of(data, objective__scheme=scheme), {"data.languages": languages})
        said = f"trains on {untrained}, in which split train of .* no captions; --data.languages {remedy} leaves out"
        with pytest.raises(ValueError, match=f"scheme={scheme} {said}"):
            check_experiment(experiment)
        check_experiment(override(experiment, {"data.languages": remedy.removeprefix("with one of ").split(", ")[0]}))


@pytest.mark.parametrize(
    ("wanted", "remedy"),
    [
        ("fra", {"data.soundscapes.languages": "eng,deu,fra"}),
        ("swe", {"data.languages": "eng,deu"}),
    ],
)
def test_a_language_that_soundscapes_lack_is_refused_with_what_helps(wanted: str, remedy: dict[str, str]) -> None:
    """They can be made in another language, if it has a grammar."""
    languages = {"data.soundscapes.languages": "eng,deu", "data.languages": wanted}
    experiment = override(tiny(Path("soundscapes")), languages)
    ((path, codes),) = remedy.items()
    with pytest.raises(
        ValueError, match=rf"{wanted} not in soundscapes; it has eng, deu \(choose with --{path} {codes}\)"
    ):
        check_languages(experiment, None)
    check_languages(override(experiment, remedy), None)


def test_a_metric_in_a_language_that_validation_lacks_is_refused_at_once(tmp_path: Path) -> None:
    rows: list[Any] = []
    for split, count in (("train", 16), ("val", 8)):
        for index in range(count):
            path = write_tone(tmp_path / "in" / split / f"{index:02d}.wav", 0.4, 200.0 + len(rows))
            texts = {"eng": f"tone {index}" if split == "train" else "", "deu": f"Ton {index}"}
            rows.append({"path": f"{split}/{path.name}", "split": split, **texts})
    (tmp_path / "in" / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = TableSource(source=str(tmp_path / "in"), caption_column=("eng", "deu"))
    experiment = of(Path(str(import_data_set(source, tmp_path / "set", options=Import()).folder)))
    chosen_by = {group: {"evaluation.select_by": f"text_to_audio/{group}/recall_at_1"} for group in ("trained", "mean")}
    said = (
        r"select_by: got 'text_to_audio/trained/recall_at_1 \(eng\)'; allowed a language in which split val of .* has"
    )
    with pytest.raises(ValueError, match=said):
        check_experiment(override(experiment, chosen_by["trained"]))
    check_experiment(override(experiment, chosen_by["mean"]))
