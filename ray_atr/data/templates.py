"""Captions for class labels: "This is a sound of {class}" for the 50 classes of ESC-50, in eight languages.

K. J. Piczak, "ESC: Dataset for Environmental Sound Classification", ACM Multimedia 2015, for the classes.
"""

from __future__ import annotations

from collections.abc import Callable

from ray_atr.data.languages import require_language
from ray_atr.data.prepositions import catalan_of, french_of, spanish_of
from ray_atr.settings import nearest, refuse

_TEMPLATES: dict[str, Callable[[str], str]] = {
    "eng": lambda noun: f"This is a sound of {noun}.",
    "fra": lambda noun: f"C'est le bruit {french_of(noun)}.",
    "deu": lambda noun: f"Das ist das Geräusch {noun}.",
    "spa": lambda noun: f"Este es el sonido {spanish_of(noun)}.",
    "nld": lambda noun: f"Dit is het geluid van {noun}.",
    "cat": lambda noun: f"Aquest és el so {catalan_of(noun)}.",
    "jpn": lambda noun: f"これは{noun}です。",
    "zho": lambda noun: f"这是{noun}。",
}
_COLUMNS = tuple(_TEMPLATES)

# English, French, German (with its genitive), Spanish, Dutch, Catalan: the noun with its article; Japanese and
# Chinese: the sound itself.
_NOUNS: dict[str, tuple[str, ...]] = {
    "dog": ("a dog", "un chien", "eines Hundes", "un perro", "een hond", "un gos", "犬の鳴き声", "狗叫声"),
    "rooster": (
        "a rooster", "un coq", "eines Hahns", "un gallo", "een haan", "un gall", "おんどりの鳴き声", "公鸡打鸣声",
    ),
    "pig": ("a pig", "un cochon", "eines Schweins", "un cerdo", "een varken", "un porc", "豚の鳴き声", "猪叫声"),
    "cow": ("a cow", "une vache", "einer Kuh", "una vaca", "een koe", "una vaca", "牛の鳴き声", "牛叫声"),
    "frog": (
        "a frog", "une grenouille", "eines Froschs", "una rana", "een kikker", "una granota", "カエルの鳴き声",
        "蛙鸣声",
    ),
    "cat": ("a cat", "un chat", "einer Katze", "un gato", "een kat", "un gat", "猫の鳴き声", "猫叫声"),
    "hen": (
        "a hen", "une poule", "einer Henne", "una gallina", "een kip", "una gallina", "めんどりの鳴き声", "母鸡叫声",
    ),
    "insects": (
        "insects", "des insectes", "von Insekten", "insectos", "insecten", "insectes", "虫の羽音", "昆虫的嗡嗡声",
    ),
    "sheep": ("a sheep", "un mouton", "eines Schafs", "una oveja", "een schaap", "una ovella", "羊の鳴き声", "羊叫声"),
    "crow": ("a crow", "un corbeau", "einer Krähe", "un cuervo", "een kraai", "un corb", "カラスの鳴き声", "乌鸦叫声"),
    "rain": ("rain", "la pluie", "des Regens", "la lluvia", "regen", "la pluja", "雨の音", "雨声"),
    "sea_waves": (
        "sea waves", "les vagues de la mer", "von Meereswellen", "las olas del mar", "zeegolven", "les onades del mar",
        "海の波の音", "海浪声",
    ),
    "crackling_fire": (
        "a crackling fire", "un feu qui crépite", "eines knisternden Feuers", "un fuego que crepita",
        "een knetterend vuur", "un foc que crepita", "火がパチパチと燃える音", "火堆噼啪作响的声音",
    ),
    "crickets": (
        "crickets", "des grillons", "von Grillen", "grillos", "krekels", "grills", "コオロギの鳴き声", "蟋蟀鸣叫声",
    ),
    "chirping_birds": (
        "chirping birds", "des oiseaux qui gazouillent", "von zwitschernden Vögeln", "pájaros que cantan",
        "tjilpende vogels", "ocells que canten", "鳥のさえずり", "鸟鸣声",
    ),
    "water_drops": (
        "water drops", "des gouttes d'eau", "von Wassertropfen", "gotas de agua", "waterdruppels", "gotes d'aigua",
        "水滴が落ちる音", "水滴声",
    ),
    "wind": ("wind", "le vent", "des Windes", "el viento", "de wind", "el vent", "風の音", "风声"),
    "pouring_water": (
        "pouring water", "l'eau que l'on verse", "von Wasser, das eingegossen wird", "agua que se vierte",
        "water dat wordt ingeschonken", "aigua que s'aboca", "水を注ぐ音", "倒水声",
    ),
    "toilet_flush": (
        "a toilet flush", "une chasse d'eau", "einer Toilettenspülung", "la cisterna de un inodoro",
        "een toilet dat wordt doorgespoeld", "la cisterna d'un vàter", "トイレの水を流す音", "冲马桶的声音",
    ),
    "thunderstorm": (
        "a thunderstorm", "un orage", "eines Gewitters", "una tormenta", "een onweersbui", "una tempesta", "雷雨の音",
        "雷雨声",
    ),
    "crying_baby": (
        "a crying baby", "un bébé qui pleure", "eines weinenden Babys", "un bebé que llora", "een huilende baby",
        "un nadó que plora", "赤ちゃんの泣き声", "婴儿哭声",
    ),
    "sneezing": (
        "sneezing", "un éternuement", "des Niesens", "un estornudo", "iemand die niest", "un esternut", "くしゃみの音",
        "打喷嚏的声音",
    ),
    "clapping": (
        "clapping", "des applaudissements", "des Klatschens", "aplausos", "handgeklap", "aplaudiments", "拍手の音",
        "鼓掌声",
    ),
    "breathing": (
        "breathing", "une respiration", "des Atmens", "una respiración", "ademhaling", "una respiració", "呼吸の音",
        "呼吸声",
    ),
    "coughing": (
        "coughing", "quelqu'un qui tousse", "des Hustens", "alguien que tose", "iemand die hoest", "algú que tus",
        "咳の音", "咳嗽声",
    ),
    "footsteps": ("footsteps", "des pas", "von Schritten", "pasos", "voetstappen", "passos", "足音", "脚步声"),
    "laughing": ("laughing", "un rire", "des Lachens", "risas", "gelach", "rialles", "笑い声", "笑声"),
    "brushing_teeth": (
        "brushing teeth", "quelqu'un qui se brosse les dents", "des Zähneputzens", "alguien que se cepilla los dientes",
        "iemand die tanden poetst", "algú que es raspalla les dents", "歯磨きの音", "刷牙声",
    ),
    "snoring": (
        "snoring", "un ronflement", "des Schnarchens", "un ronquido", "gesnurk", "un ronc", "いびきの音", "打鼾声",
    ),
    "drinking_sipping": (
        "drinking and sipping", "quelqu'un qui boit à petites gorgées", "von jemandem, der in kleinen Schlucken trinkt",
        "alguien que bebe a sorbos", "iemand die met kleine slokjes drinkt", "algú que beu a glops", "飲み物をすする音",
        "小口喝水的声音",
    ),
    "door_wood_knock": (
        "a knock on a wooden door", "des coups à une porte en bois", "des Klopfens an einer Holztür",
        "golpes en una puerta de madera", "geklop op een houten deur", "cops a una porta de fusta",
        "木のドアをノックする音", "敲木门的声音",
    ),
    "mouse_click": (
        "a mouse click", "un clic de souris", "eines Mausklicks", "un clic de ratón", "een muisklik",
        "un clic de ratolí", "マウスのクリック音", "鼠标点击声",
    ),
    "keyboard_typing": (
        "typing on a keyboard", "quelqu'un qui tape sur un clavier", "des Tippens auf einer Tastatur",
        "alguien que escribe en un teclado", "iemand die op een toetsenbord typt", "algú que escriu en un teclat",
        "キーボードを打つ音", "敲键盘的声音",
    ),
    "door_wood_creaks": (
        "a creaking wooden door", "une porte en bois qui grince", "einer knarrenden Holztür",
        "una puerta de madera que chirría", "een krakende houten deur", "una porta de fusta que grinyola",
        "木のドアがきしむ音", "木门吱呀作响的声音",
    ),
    "can_opening": (
        "the opening of a can", "une canette que l'on ouvre", "des Öffnens einer Dose", "una lata que se abre",
        "een blikje dat wordt geopend", "una llauna que s'obre", "缶を開ける音", "打开易拉罐的声音",
    ),
    "washing_machine": (
        "a washing machine", "une machine à laver", "einer Waschmaschine", "una lavadora", "een wasmachine",
        "una rentadora", "洗濯機の音", "洗衣机的声音",
    ),
    "vacuum_cleaner": (
        "a vacuum cleaner", "un aspirateur", "eines Staubsaugers", "una aspiradora", "een stofzuiger", "una aspiradora",
        "掃除機の音", "吸尘器的声音",
    ),
    "clock_alarm": (
        "an alarm clock", "un réveil", "eines Weckers", "un despertador", "een wekker", "un despertador",
        "目覚まし時計の音", "闹钟声",
    ),
    "clock_tick": (
        "a ticking clock", "une horloge qui fait tic-tac", "einer tickenden Uhr", "un reloj que hace tictac",
        "een tikkende klok", "un rellotge que fa tic-tac", "時計が時を刻む音", "时钟的滴答声",
    ),
    "glass_breaking": (
        "breaking glass", "le verre qui se brise", "von zerbrechendem Glas", "un cristal que se rompe", "brekend glas",
        "un vidre que es trenca", "ガラスが割れる音", "玻璃破碎声",
    ),
    "helicopter": (
        "a helicopter", "un hélicoptère", "eines Hubschraubers", "un helicóptero", "een helikopter", "un helicòpter",
        "ヘリコプターの音", "直升机的声音",
    ),
    "chainsaw": (
        "a chainsaw", "une tronçonneuse", "einer Kettensäge", "una motosierra", "een kettingzaag", "una motoserra",
        "チェーンソーの音", "链锯声",
    ),
    "siren": (
        "a siren", "une sirène", "einer Sirene", "una sirena", "een sirene", "una sirena", "サイレンの音", "警笛声",
    ),
    "car_horn": (
        "a car horn", "un klaxon de voiture", "einer Autohupe", "el claxon de un coche", "een autoclaxon",
        "el clàxon d'un cotxe", "車のクラクションの音", "汽车喇叭声",
    ),
    "engine": (
        "an engine", "un moteur", "eines Motors", "un motor", "een motor", "un motor", "エンジンの音", "发动机的声音",
    ),
    "train": ("a train", "un train", "eines Zuges", "un tren", "een trein", "un tren", "電車の音", "火车的声音"),
    "church_bells": (
        "church bells", "des cloches d'église", "von Kirchenglocken", "campanas de iglesia", "kerkklokken",
        "campanes d'església", "教会の鐘の音", "教堂的钟声",
    ),
    "airplane": (
        "an airplane", "un avion", "eines Flugzeugs", "un avión", "een vliegtuig", "un avió", "飛行機の音",
        "飞机的声音",
    ),
    "fireworks": (
        "fireworks", "un feu d'artifice", "eines Feuerwerks", "fuegos artificiales", "vuurwerk", "focs artificials",
        "花火の音", "烟花爆裂声",
    ),
    "hand_saw": (
        "a hand saw", "une scie à main", "einer Handsäge", "una sierra de mano", "een handzaag", "una serra de mà",
        "のこぎりの音", "手锯声",
    ),
}  # fmt: skip

ESC50_CLASSES: tuple[str, ...] = tuple(_NOUNS)
"""The class names as `meta/esc50.csv` writes them."""


def caption(class_name: str, language: str) -> str:
    """The sentence "This is a sound of {class}" in a language. ValueError for an unknown class or language."""
    require_language(language)
    if class_name not in _NOUNS:
        raise refuse("class_name", class_name, "the 50 classes of ESC-50", nearest(class_name, _NOUNS))
    return _TEMPLATES[language](_NOUNS[class_name][_COLUMNS.index(language)])
