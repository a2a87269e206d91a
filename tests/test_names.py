"""A name has one meaning: no class name occurs in two modules. Each module can be the first that is imported."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from ray_atr.common.settings import by_name
from ray_atr.objectives.pairs import LOSSES, Contrastive
from tests.support.fork_server import run_program

FILES = sorted((Path(__file__).parents[1] / "ray_atr").rglob("*.py"))


@functools.cache
def parsed() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}


def test_a_class_name_occurs_in_one_module() -> None:
    count = Counter(node.name for tree in parsed().values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert count, "the package has classes"
    assert [name for name, number in count.items() if number > 1] == []


def test_no_text_file_depends_on_the_locale() -> None:
    """A page with an arrow would end a sweep under ISO 8859-1."""
    for file, tree in parsed().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=object_, attr="read_text" | "write_text")):
                    is_ours = isinstance(object_, ast.Name) and object_.id == "storage"
                    assert is_ours or "encoding" in {word.arg for word in node.keywords}, f"{file}:{node.lineno}"


def test_two_classes_of_one_name_are_refused() -> None:
    class CopiedContrastive(Contrastive):
        """Its author forgot to change `name`."""

    with pytest.raises(ValueError, match="CopiedContrastive: its name 'contrastive' is that of Contrastive"):
        by_name((*LOSSES, CopiedContrastive))


FIRST = """
import importlib, sys
for module in sys.argv[1:]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray_atr"]:
        del sys.modules[name]
    importlib.import_module("ray_atr." + module)
"""


def test_what_is_loaded_when_it_is_first_used_needs_no_other_module_before() -> None:
    """A wing that another one loads by its name may import that one: it must not meet it half imported."""
    loaded = {name for file in FILES for name in re.findall(r'\bwing\("([\w.]+)"\)', file.read_text(encoding="utf-8"))}
    assert len(loaded) >= 4
    ended = run_program(FIRST, *sorted(loaded))
    assert ended.returncode == 0, ended.stderr
