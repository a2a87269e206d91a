"""Japanese: how it is called, class labels as captions, and a grammar of captions.

The grammar has particles, counters, and verbs conjugated by class (ichidan, godan, suru).
"""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.workshop.languages.language import MANNER, Adverbs, Grammar, Pattern, Said, Words, listed, ordered, pattern

# Label of ESC-50 -> the sound itself.
NOUNS: dict[str, str] = {
    "dog": "犬の鳴き声", "rooster": "おんどりの鳴き声", "pig": "豚の鳴き声", "cow": "牛の鳴き声",
    "frog": "カエルの鳴き声", "cat": "猫の鳴き声", "hen": "めんどりの鳴き声", "insects": "虫の羽音",
    "sheep": "羊の鳴き声", "crow": "カラスの鳴き声",
    "rain": "雨の音", "sea_waves": "海の波の音", "crackling_fire": "火がパチパチと燃える音",
    "crickets": "コオロギの鳴き声", "chirping_birds": "鳥のさえずり", "water_drops": "水滴が落ちる音",
    "wind": "風の音", "pouring_water": "水を注ぐ音", "toilet_flush": "トイレの水を流す音", "thunderstorm": "雷雨の音",
    "crying_baby": "赤ちゃんの泣き声", "sneezing": "くしゃみの音", "clapping": "拍手の音", "breathing": "呼吸の音",
    "coughing": "咳の音", "footsteps": "足音", "laughing": "笑い声", "brushing_teeth": "歯磨きの音",
    "snoring": "いびきの音", "drinking_sipping": "飲み物をすする音",
    "door_wood_knock": "木のドアをノックする音", "mouse_click": "マウスのクリック音",
    "keyboard_typing": "キーボードを打つ音", "door_wood_creaks": "木のドアがきしむ音", "can_opening": "缶を開ける音",
    "washing_machine": "洗濯機の音", "vacuum_cleaner": "掃除機の音", "clock_alarm": "目覚まし時計の音",
    "clock_tick": "時計が時を刻む音", "glass_breaking": "ガラスが割れる音",
    "helicopter": "ヘリコプターの音", "chainsaw": "チェーンソーの音", "siren": "サイレンの音",
    "car_horn": "車のクラクションの音", "engine": "エンジンの音", "train": "電車の音", "church_bells": "教会の鐘の音",
    "airplane": "飛行機の音", "fireworks": "花火の音", "hand_saw": "のこぎりの音",
}  # fmt: skip


# subject | object or adverbial with its particle | verb in the dictionary form | class | voice or sound | continues?
# Verb classes: 1 ichidan, 5 godan, s suru. A verb that does not go on (a glass breaks) takes no progressive.
SOUNDS: dict[str, tuple[str, str, str, str, str, bool]] = {
    "dog": ("犬", "", "吠える", "1", "声", True),
    "cat": ("猫", "", "鳴く", "5", "声", True),
    "bird": ("鳥", "", "さえずる", "5", "声", True),
    "rooster": ("おんどり", "", "鳴く", "5", "声", True),
    "cow": ("牛", "", "鳴く", "5", "声", True),
    "sheep": ("羊", "", "鳴く", "5", "声", True),
    "frog": ("カエル", "", "鳴く", "5", "声", True),
    "crickets": ("コオロギ", "", "鳴く", "5", "声", True),
    "owl": ("フクロウ", "", "鳴く", "5", "声", True),
    "crow": ("カラス", "", "鳴く", "5", "声", True),
    "duck": ("アヒル", "", "鳴く", "5", "声", True),
    "bee": ("ハチ", "ブンブンと", "飛ぶ", "5", "音", True),
    "wolf": ("オオカミ", "", "遠吠えする", "s", "声", True),
    "baby": ("赤ちゃん", "", "泣く", "5", "声", True),
    "cough": ("男性", "", "咳をする", "s", "音", True),
    "sneeze": ("女性", "", "くしゃみをする", "s", "音", True),
    "snore": ("男性", "いびきを", "かく", "5", "音", True),
    "applause": ("観客", "", "拍手する", "s", "音", True),
    "footsteps": ("誰か", "硬い床の上を", "歩く", "5", "音", True),
    "whistling": ("誰か", "口笛を", "吹く", "5", "音", True),
    "heartbeat": ("心臓", "", "鼓動する", "s", "音", True),
    "rain": ("雨", "", "降る", "5", "音", True),
    "thunder": ("雷", "ゴロゴロと", "鳴る", "5", "音", True),
    "waves": ("波", "岸に", "打ち寄せる", "1", "音", True),
    "drip": ("水滴", "", "落ちる", "1", "音", True),
    "fire": ("火", "パチパチと", "燃える", "1", "音", True),
    "car_horn": ("車", "クラクションを", "鳴らす", "5", "音", True),
    "siren": ("サイレン", "", "鳴り響く", "5", "音", True),
    "engine": ("エンジン", "", "回る", "5", "音", True),
    "train": ("列車", "", "通り過ぎる", "1", "音", False),
    "helicopter": ("ヘリコプター", "上空を", "飛ぶ", "5", "音", True),
    "airplane": ("飛行機", "空を", "通り過ぎる", "1", "音", False),
    "motorcycle": ("オートバイ", "エンジンを", "吹かす", "5", "音", True),
    "drill": ("ドリル", "", "うなる", "5", "音", True),
    "vacuum_cleaner": ("掃除機", "", "うなる", "5", "音", True),
    "clock": ("時計", "カチカチと", "鳴る", "5", "音", True),
    "alarm_clock": ("目覚まし時計", "", "鳴る", "5", "音", True),
    "telephone": ("電話", "", "鳴る", "5", "音", True),
    "doorbell": ("ドアベル", "", "鳴る", "5", "音", True),
    "knock": ("誰か", "ドアを", "ノックする", "s", "音", True),
    "door_creak": ("ドア", "", "きしむ", "5", "音", True),
    "door_slam": ("ドア", "バタンと", "閉まる", "5", "音", False),
    "keyboard": ("誰か", "キーボードを", "打つ", "5", "音", True),
    "glass": ("グラス", "", "割れる", "1", "音", False),
    "church_bell": ("教会の鐘", "", "鳴る", "5", "音", True),
    "hammer": ("誰か", "ハンマーで金属を", "叩く", "5", "音", True),
    "fireworks": ("花火", "", "弾ける", "1", "音", True),
    "piano": ("誰か", "ピアノを", "弾く", "5", "音", True),
    "drum": ("誰か", "太鼓を", "叩く", "5", "音", True),
    "flute": ("誰か", "フルートを", "吹く", "5", "音", True),
    "guitar": ("誰か", "ギターを", "弾く", "5", "音", True),
}

_NOISE = (
    "footsteps",
    "keyboard",
    "door_slam",
    "glass",
    "drip",
    "train",
    "helicopter",
    "airplane",
    "fire",
    "engine",
    "bee",
)
ADVERBS = Adverbs(
    {
        "voice": ("大きな声で", "小さな声で"),
        "body": ("大きく", "小さく"),
        "sound": ("大きな音で", "小さな音で"),
        "noise": ("大きな音を立てて", "小さな音を立てて"),
        "force": ("強く", "軽く"),
        "rain": ("激しく", "静かに"),
        "waves": ("激しく", "静かに"),
    },
    ("速く", "ゆっくりと"),
    ("二回", "三回", "四回", "五回"),
    MANNER | dict.fromkeys(_NOISE, "noise"),
)
BACKGROUND = {
    "hum": "電気の低いうなりを背景に、",
    "street": "車の往来を背景に、",
    "wind": "風の音を背景に、",
    "crowd": "人々のざわめきを背景に、",
    "fan": "換気扇の音を背景に、",
}

_STEM = dict(zip("うくぐすつぬぶむる", "いきぎしちにびみり", strict=True))
_TE = {
    "う": "って", "つ": "って", "る": "って", "く": "いて", "ぐ": "いで", "す": "して",
    "ぬ": "んで", "ぶ": "んで", "む": "んで",
}  # fmt: skip


def verb_stem(verb: str, group: str) -> str:
    """The continuative form: 吠え, 鳴き, し."""
    if group == "s":
        return verb[:-2] + "し"
    return verb[:-1] + ("" if group == "1" else _STEM[verb[-1]])


def te_form(verb: str, group: str) -> str:
    """The te form: 吠えて, 鳴いて, して."""
    return verb[:-1] + _TE[verb[-1]] if group == "5" else verb_stem(verb, group) + "て"


def _phrase(said: Said, form: str) -> str:
    subject, rest, verb, group, _, _ = SOUNDS[said.kind]
    endings = {"plain": verb, "stem": verb_stem(verb, group), "going": te_form(verb, group) + "いる"}
    return f"{subject}が{rest}{ADVERBS.manner(said)}{ADVERBS.times(said)}{endings[form]}"


def main(said: Said) -> str:
    """The closing clause: progressive for what continues, plain for what happens once or is counted."""
    goes_on = SOUNDS[said.kind][5] and said.count is None
    return _phrase(said, "going" if goes_on else "plain")


def plain(said: Said) -> str:
    """The closing clause of what comes one after the other: 犬が吠える."""
    return _phrase(said, "plain")


def linked(said: Said) -> str:
    """A clause that another follows: 犬が吠え."""
    return _phrase(said, "stem")


def noun(said: Said) -> str:
    """The sound that the clause makes: 犬が吠える声."""
    return _phrase(said, "plain") + SOUNDS[said.kind][4]


def during(sounds: Sequence[Said]) -> tuple[str, str]:
    """What the first sound is heard during comes before it: 鳥がさえずっている中、犬が吠えている."""
    first, *between, last = sounds
    return "", "、".join([*map(linked, between), main(last)]) + f"中、{main(first)}"


PATTERNS: dict[str, Pattern] = {
    "plain": pattern("", main),
    "while": during,
    "simultaneous": pattern("", linked, listed("、同時に", "、"), last=main),
    "then": pattern("", linked, ordered("、それから", "、最後に"), last=plain),
    "first": pattern("", lambda said: "まず" + linked(said), ordered("、次に", "、最後に"), later=linked, last=plain),
    "sequence hear": pattern("", noun, ordered("に続いて、", "、そして"), "が聞こえる"),
    "sequence recording": pattern("", noun, ordered("、続いて", "、最後に"), "の録音"),
    "sequence scene": pattern("この録音では、", linked, ordered("、少し後に", "、最後に"), last=plain),
    "sound": pattern("", noun),
    "hear": pattern("", noun, "と、".join, "が聞こえる"),
    "recording": pattern("", noun, "と、".join, "の録音"),
    "scene": pattern("この録音では、", linked, "、".join, last=main),
}


WORDS = Words(
    template=lambda noun: f"これは{noun}です。", nouns=NOUNS,
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND, "{opening}{background}{sounds}。"),
)  # fmt: skip
