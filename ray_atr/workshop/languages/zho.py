"""Chinese: how it is called, class labels as captions, and a grammar of captions.

The grammar has measure words for nouns and for actions, aspect markers 在, 正, 了.
"""

from __future__ import annotations

from typing import NamedTuple

from ray_atr.workshop.languages.language import MANNER, Adverbs, Grammar, Said, Words, listed, ordered, pattern

# Label of ESC-50 -> the sound itself.
NOUNS: dict[str, str] = {
    "dog": "狗叫声", "rooster": "公鸡打鸣声", "pig": "猪叫声", "cow": "牛叫声", "frog": "蛙鸣声", "cat": "猫叫声",
    "hen": "母鸡叫声", "insects": "昆虫的嗡嗡声", "sheep": "羊叫声", "crow": "乌鸦叫声",
    "rain": "雨声", "sea_waves": "海浪声", "crackling_fire": "火堆噼啪作响的声音", "crickets": "蟋蟀鸣叫声",
    "chirping_birds": "鸟鸣声", "water_drops": "水滴声", "wind": "风声", "pouring_water": "倒水声",
    "toilet_flush": "冲马桶的声音", "thunderstorm": "雷雨声",
    "crying_baby": "婴儿哭声", "sneezing": "打喷嚏的声音", "clapping": "鼓掌声", "breathing": "呼吸声",
    "coughing": "咳嗽声", "footsteps": "脚步声", "laughing": "笑声", "brushing_teeth": "刷牙声", "snoring": "打鼾声",
    "drinking_sipping": "小口喝水的声音",
    "door_wood_knock": "敲木门的声音", "mouse_click": "鼠标点击声", "keyboard_typing": "敲键盘的声音",
    "door_wood_creaks": "木门吱呀作响的声音", "can_opening": "打开易拉罐的声音", "washing_machine": "洗衣机的声音",
    "vacuum_cleaner": "吸尘器的声音", "clock_alarm": "闹钟声", "clock_tick": "时钟的滴答声",
    "glass_breaking": "玻璃破碎声",
    "helicopter": "直升机的声音", "chainsaw": "链锯声", "siren": "警笛声", "car_horn": "汽车喇叭声",
    "engine": "发动机的声音", "train": "火车的声音", "church_bells": "教堂的钟声", "airplane": "飞机的声音",
    "fireworks": "烟花爆裂声", "hand_saw": "手锯声",
}  # fmt: skip


class Row(NamedTuple):
    """A sound's words: `measure` counts the action (三声, 三下), `aspect` marks it as going on (在, 正) or done (了)."""

    subject: str
    verb: str
    object: str = ""
    measure: str = "次"
    aspect: str = "在"
    place: str = ""


SOUNDS: dict[str, Row] = {
    "dog": Row("一只狗", "叫", measure="声"),
    "cat": Row("一只猫", "叫", measure="声"),
    "bird": Row("一只小鸟", "鸣叫"),
    "rooster": Row("一只公鸡", "打鸣"),
    "cow": Row("一头牛", "叫", measure="声"),
    "sheep": Row("一只羊", "叫", measure="声"),
    "frog": Row("一只青蛙", "叫", measure="声"),
    "crickets": Row("几只蟋蟀", "鸣叫"),
    "owl": Row("一只猫头鹰", "叫", measure="声"),
    "crow": Row("一只乌鸦", "叫", measure="声"),
    "duck": Row("一只鸭子", "叫", measure="声"),
    "bee": Row("一只蜜蜂", "嗡嗡叫"),
    "wolf": Row("一匹狼", "嚎叫"),
    "baby": Row("一个婴儿", "哭"),
    "cough": Row("一名男子", "咳嗽", measure="声"),
    "sneeze": Row("一名女子", "打", "喷嚏", measure="个"),
    "snore": Row("一名男子", "打呼噜"),
    "applause": Row("一群观众", "鼓掌"),
    "footsteps": Row("有人", "行走", aspect="", place="在硬地板上"),
    "whistling": Row("有人", "吹", "口哨"),
    "heartbeat": Row("一颗心脏", "跳动"),
    "rain": Row("雨", "落下"),
    "thunder": Row("雷声", "隆隆作响"),
    "waves": Row("海浪", "拍打", "海岸"),
    "drip": Row("水", "滴落"),
    "fire": Row("一堆火", "噼啪作响"),
    "car_horn": Row("一辆汽车", "按", "喇叭", measure="声"),
    "siren": Row("警报器", "鸣响"),
    "engine": Row("一台发动机", "运转"),
    "train": Row("一列火车", "驶过", aspect="正"),
    "helicopter": Row("一架直升机", "飞行", aspect="", place="在空中"),
    "airplane": Row("一架飞机", "飞过", aspect="正"),
    "motorcycle": Row("一辆摩托车", "轰油门"),
    "drill": Row("一台电钻", "转动"),
    "vacuum_cleaner": Row("一台吸尘器", "嗡嗡作响"),
    "clock": Row("一座时钟", "滴答作响"),
    "alarm_clock": Row("一个闹钟", "响", measure="声"),
    "telephone": Row("一部电话", "响", measure="声"),
    "doorbell": Row("一个门铃", "响", measure="声"),
    "knock": Row("有人", "敲", "门", measure="下"),
    "door_creak": Row("一扇门", "吱呀作响"),
    "door_slam": Row("一扇门", "砰地关上", aspect="了"),
    "keyboard": Row("有人", "敲", "键盘"),
    "glass": Row("一个玻璃杯", "碎裂", aspect="了"),
    "church_bell": Row("一口教堂的钟", "响", measure="下"),
    "hammer": Row("有人", "敲", "金属", measure="下", place="用锤子"),
    "fireworks": Row("烟花", "爆响"),
    "piano": Row("有人", "弹", "钢琴"),
    "drum": Row("有人", "敲", "鼓"),
    "flute": Row("有人", "吹", "长笛"),
    "guitar": Row("有人", "弹", "吉他"),
}

_NOISE = ("train", "helicopter", "airplane", "engine", "motorcycle", "drill", "vacuum_cleaner", "glass", "drip", "fire")
_WEIGHT = ("footsteps", "keyboard", "door_slam")
ADVERBS = Adverbs(
    {
        "voice": ("大声地", "轻声地"),
        "body": ("大声地", "轻轻地"),
        "sound": ("响亮地", "轻轻地"),
        "noise": ("很响地", "轻轻地"),
        "weight": ("重重地", "轻轻地"),
        "force": ("用力地", "轻轻地"),
        "rain": ("猛烈地", "轻柔地"),
        "waves": ("猛烈地", "轻柔地"),
    },
    ("快速地", "缓慢地"),
    ("两", "三", "四", "五"),
    MANNER | dict.fromkeys(_NOISE, "noise") | dict.fromkeys(_WEIGHT, "weight"),
)
BACKGROUND = {
    "hum": "，背景中有电流的嗡嗡声",
    "street": "，背景中有车流声",
    "wind": "，背景中有风声",
    "crowd": "，背景中有人群的低语声",
    "fan": "，背景中有风扇转动的声音",
}


def main(said: Said) -> str:
    """A clause: 一只狗在大声地叫; counted: 一只狗大声地叫了三声."""
    row, manner = SOUNDS[said.kind], ADVERBS.manner(said)
    if said.count is not None:
        return f"{row.subject}{row.place}{manner}{row.verb}了{ADVERBS.times(said)}{row.measure}{row.object}"
    before, after = ("", "了") if row.aspect == "了" else (row.aspect, "")
    return f"{row.subject}{before}{row.place}{manner}{row.verb}{after}{row.object}"


def noun(said: Said) -> str:
    """The sound of it: 一只狗大声地叫三声的声音."""
    row = SOUNDS[said.kind]
    times = ADVERBS.times(said) + row.measure if said.count is not None else ""
    return f"{row.subject}{row.place}{ADVERBS.manner(said)}{row.verb}{times}{row.object}的声音"


PATTERNS = {
    "plain": pattern("", main),
    "while": pattern("", main, ordered("，与此同时，", "，")),
    "simultaneous": pattern("", main, listed("，同时", "，")),
    "then": pattern("", main, ordered("，然后", "，最后")),
    "first": pattern("首先", main, ordered("，接着", "，最后")),
    "sequence hear": pattern("可以听到", noun, ordered("，随后是", "，最后是")),
    "sequence recording": pattern("录音中先是", noun, ordered("，再是", "，最后是")),
    "sequence scene": pattern("在这段录音中，", main, ordered("，过了一会儿，", "，最后")),
    "sound": pattern("", noun),
    "hear": pattern("可以听到", noun, listed("和", "、")),
    "recording": pattern("录音中传来", noun, listed("和", "、")),
    "scene": pattern("在这段录音中，", main, "，".join),
}


WORDS = Words(
    template=lambda noun: f"这是{noun}。", nouns=NOUNS,
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND, "{opening}{sounds}{background}。"),
)  # fmt: skip
