"""For the rendered pages: where a browser may break a line of code.

A browser may break `--train.epochs` after each of its first two hyphens. Here an option stays whole up to its first dot. In a
table, where a name is otherwise never broken, a dotted name may be broken after a dot, but not before a file's extension.
Each line of a command is an element of its own, so that what goes on in a second row can be indented.
"""

from __future__ import annotations

import re

CODE = re.compile(r"<code[^>]*>.*?</code>", re.DOTALL)
COMMANDS = re.compile(r"(<pre[^>]*>(?:<span></span>)?<code>)([^<]*)(?=</code></pre>)")
LINE = re.compile(r".+")
OPTION = re.compile(r"(?<![\w-])--[\w-]+")
CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
FILES = "arrow|csv|faiss|html|jsonl?|md|np[yz]|onnx|parquet|pt|py|safetensors|svg|yaml"
DOT = re.compile(rf"(?<=\w)\.(?=[a-z])(?!(?:{FILES})\b)(?![^<]*>)")


def on_page_content(html: str, **_: object) -> str:
    """The page's HTML, with the places for breaks."""
    html = COMMANDS.sub(lambda block: block[1] + LINE.sub(r'<span class="line">\g<0></span>', block[2]), html)
    html = CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
    return CELL.sub(lambda cell: CODE.sub(lambda code: DOT.sub(".<wbr>", code[0]), cell[0]), html)
