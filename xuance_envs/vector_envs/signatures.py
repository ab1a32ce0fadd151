"""Signatures and docstrings of classes that accept a ``TypedDict`` as ``**options``."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from xuance_envs._deprecated import with_new_names
from xuance_envs.vector_envs.options import did_you_mean

T = TypeVar("T", bound=type[Any])

SECTIONS = ("Args", "Attributes", "Raises", "Example")
_HEADER = re.compile(rf"^({'|'.join(SECTIONS)}):\n", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\*{0,2}\w+):.*\n(?: {5,}.*\n)*", re.MULTILINE)


def with_options(options: Any = None, *sources: Callable[..., Any]) -> Callable[[T], T]:
    """Return a class decorator that documents the arguments behind ``**options``."""

    def decorate(cls: T) -> T:
        signature = inspect.signature(cls.__init__)
        if options is not None:
            signature = _expanded(signature, options, sources)
            cls.__init__ = _checking_names(cls.__init__, signature)
        cls.__doc__ = _documented(cls, signature, sources)
        return cls

    return decorate


def _expanded(
    signature: inspect.Signature, options: Any, sources: tuple[Callable[..., Any], ...]
) -> inspect.Signature:
    *own, _ = signature.parameters.values()
    names = options.__annotations__.keys() - signature.parameters.keys()
    for source in sources:
        for each in inspect.signature(source).parameters.values():
            if each.name in names:  # the first source decides
                own.append(each.replace(kind=each.KEYWORD_ONLY))
                names.remove(each.name)
    assert not names, f"no default values for {names}"
    return signature.replace(parameters=own)


def _checking_names(init: Callable[..., None], signature: inspect.Signature) -> Any:
    @functools.wraps(init)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = with_new_names(kwargs)
        for name in kwargs:
            if name not in signature.parameters:
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}"
                    + did_you_mean(name, signature.parameters)
                )
        init(self, *args, **kwargs)

    del checked_init.__wrapped__  # Sphinx would look for the options' default values there
    checked_init.__signature__ = signature  # type: ignore[attr-defined]
    return checked_init


def _documented(
    cls: type[Any], signature: inspect.Signature, sources: tuple[Callable[..., Any], ...]
) -> str | None:
    if cls.__doc__ is None:  # python -OO
        return None
    summary, sections, entries = _parsed(cls)
    for source in sources:
        _, others, more_entries = _parsed(source)
        entries = {**more_entries, **entries}
        if source in cls.__mro__:
            sections = {**others, **sections}
    sections["Args"] = "".join(entries[name] for name in signature.parameters if name in entries)
    text = [summary, *(f"{name}:\n{sections[name]}" for name in SECTIONS if name in sections)]
    return "\n".join(part.rstrip("\n") + "\n" for part in text)


def _parsed(source: Any) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return a docstring's summary, its sections, and the entries of its arguments."""
    summary, *rest = _HEADER.split(inspect.cleandoc(source.__doc__ or "") + "\n")
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    entries = {entry[1]: entry[0] for entry in _ENTRY.finditer(sections.get("Args", ""))}
    return summary, sections, entries
