"""Points, columns and rows: the same vector in different brackets."""

from __future__ import annotations

from winnowrl.envs.math.shapes import Items


def as_column(one: Items, other: Items) -> Items:
    """A point ``(1, 2)`` as the column vector that ``other`` is; anything else as it is."""
    is_column = other.kind == "matrix" and all(isinstance(row, Items) and len(row.items) == 1 for row in other.items)
    if is_column and len(other.items) > 1 and one.kind == "tuple" and one.brackets == "()":
        return Items("matrix", "", tuple(Items("tuple", "[]", (item,)) for item in one.items))
    return one


def as_rows(items: Items) -> Items:
    """A list of lists ``[[1, 2], [3, 4]]`` as the matrix it writes."""
    if items.kind == "tuple" and items.brackets == "[]":
        rows = [row for row in items.items if isinstance(row, Items) and row.brackets == "[]"]
        if len(rows) == len(items.items):
            return Items("matrix", "", tuple(rows))
    return items if items.kind == "matrix" else Items("matrix", "", (items,))
