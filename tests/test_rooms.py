"""How far a reader must go: rooms are folders, arrows say that one imports another, floors are the longest way down."""

from __future__ import annotations

from functools import cache

import grimp

MOST_ARROWS, MOST_FLOORS = 120, 10


def test_the_house_keeps_its_floors_and_its_arrows() -> None:
    graph = grimp.build_graph("ray_atr", cache_dir=None)
    below: dict[str, set[str]] = {}

    def room_of(module: str) -> str:
        return module if graph.find_children(module) else module.rpartition(".")[0]

    for module in graph.modules - {"ray_atr", "ray_atr.__main__"}:  # where one enters, and no room
        imported = graph.find_modules_directly_imported_by(module) - {"ray_atr"}
        below.setdefault(room_of(module), set()).update(map(room_of, imported))

    @cache
    def floors(room: str) -> int:
        return 1 + max((floors(other) for other in below[room] - {room}), default=0)

    assert len(below) > 20
    arrows = {(room, other) for room, others in below.items() for other in others if other != room}
    assert len(arrows) <= MOST_ARROWS
    assert max(map(floors, below)) <= MOST_FLOORS
