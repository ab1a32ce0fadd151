"""Unrolled loops over the keys of dicts, compiled from source text.

In multi-agent environments, every step reads and builds dicts with a value per agent. Unrolled code
takes about half the time of a loop: with loops, a step of cheap environments with eight agents is
6 to 10 % slower. The source contains no data except numbers; all other data are arguments. Code is
compiled once per number of keys. To limit this, large dicts use loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from xuance_envs.engine.data.space_rows import Row

_ALL = slice(None)

_MAX_KEYS = 64

_MAX_CELLS = 1024  # maximum number of keys in nested dicts that are unrolled
Cell = tuple[Any, Any, Any]  # key; container and index of its value


def make_dict_builder(
    keys: Sequence[Any],
    places: Sequence[int],
    unpack: Callable[[Any], Sequence[Any]],
    known: Mapping[Any, Any],
    made: Callable[[Any], Any],
) -> Callable[[Any], dict[Any, Any]]:
    """Return a function that builds a dict from a record, which has a number for each value."""
    in_order = sorted(places)
    at = [in_order.index(place) for place in places]

    def take(record: Any) -> dict[Any, Any]:
        given = unpack(record)
        numbers = [given[i] for i in at]
        values = [known[number] if number in known else made(number) for number in numbers]
        return dict(zip(keys, values, strict=True))

    if len(keys) > _MAX_KEYS or at != list(range(len(at))):
        return take
    return _dict_builder_source(len(keys))(unpack, known, take, *keys)  # type: ignore[no-any-return]


def make_dict_reader(
    keys: Sequence[Any], rows: Sequence[Row], pack: Callable[..., None], memory: memoryview
) -> Callable[[Mapping[Any, Any], Mapping[Any, Any]], None]:
    """Return a function that stores one dict's values in rows, and packs another dict's numbers."""
    if len(keys) <= _MAX_KEYS:
        make = _dict_reader_source(len(keys))
        return make(pack, memory, _ALL, *keys, *rows)  # type: ignore[no-any-return]
    pairs = list(zip(keys, rows, strict=True))

    def put(values: Mapping[Any, Any], numbers: Mapping[Any, Any]) -> None:
        for key, row in pairs:
            row[_ALL] = values[key]
        pack(memory, 0, *[numbers[key] for key in keys])

    return put


def make_nested_reader(cells_of: Mapping[Any, Sequence[Cell]]) -> Callable[[Any], bool] | None:
    """Return a function that stores values of nested dicts, or returns False if their form differs.

    It returns False for subclasses of dict, because some have a value for every key.
    """
    counts = tuple(map(len, cells_of.values()))
    if sum(counts) > _MAX_CELLS:
        return None
    cells = chain.from_iterable(chain.from_iterable(cells_of.values()))
    return _nested_reader_source(counts)(*cells_of, *cells)  # type: ignore[no-any-return]


@lru_cache(_MAX_KEYS + 1)
def _dict_builder_source(count: int) -> Callable[..., Any]:
    keys, numbers = _names("k", count), _names("n", count)
    items = [f"{key}: known[{number}]" for key, number in zip(keys, numbers, strict=True)]
    return _compile(
        ["unpack", "known", "take", *keys],
        ["record"],
        [
            f"[{', '.join(numbers)}] = unpack(record)",
            f"try: return {{{', '.join(items)}}}",
            "except LookupError: return take(record)",
        ],
    )


@lru_cache(_MAX_KEYS + 1)
def _dict_reader_source(count: int) -> Callable[..., Any]:
    keys, rows = _names("k", count), _names("r", count)
    lines = [f"{row}[every] = values[{key}]" for row, key in zip(rows, keys, strict=True)]
    numbers = "".join([f", numbers[{key}]" for key in keys])
    return _compile(
        ["pack", "memory", "every", *keys, *rows],
        ["values", "numbers"],
        [*lines, f"pack(memory, 0{numbers})"],
    )


@lru_cache(128)
def _nested_reader_source(counts: tuple[int, ...]) -> Callable[..., Any]:
    outer, cells = _names("o", len(counts)), iter(range(sum(counts)))
    differs = "if type({0}) is not dict or len({0}) != {1}: return False"
    lines = [differs.format("dicts", len(counts))]
    for key, count in zip(outer, counts, strict=True):
        lines += [f"inner = dicts[{key}]", differs.format("inner", count)]
        lines += [f"h{i}[a{i}] = inner[k{i}]" for i in islice(cells, count)]
    known = [name for i in range(sum(counts)) for name in (f"k{i}", f"h{i}", f"a{i}")]
    return _compile([*outer, *known], ["dicts"], [*lines, "return True"])


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def _compile(
    known: Sequence[str], given: Sequence[str], lines: Sequence[str]
) -> Callable[..., Any]:
    """Compile a factory with parameters ``known``; its functions have parameters ``given``."""
    body = "\n        ".join(lines)
    source = f"""
def make({", ".join(known)}):
    def act({", ".join(given)}):
        {body}
    return act
"""
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<{__name__}>", "exec"), namespace)
    made: Callable[..., Any] = namespace["make"]
    return made
