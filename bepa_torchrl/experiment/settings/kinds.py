"""The types of settings: numbers with bounds, and how a type is described. Imports neither torch nor Hydra."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Lt
from pydantic import Strict

Positive = Annotated[int, Ge(1)]
Count = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
AboveOne = Annotated[float, Gt(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
#: text that may look like a number, as in ``name=5`` and ``policy.engine.devices=1``
Text = Annotated[str, Strict(False)]


def key_of_field(field: str) -> str:
    """The key of a dataclass's field: ``import`` is a keyword of Python, so that its field is ``import_``."""
    return field.removesuffix("_")


_PLAIN = {bool: "true or false", int: "an integer", float: "a number", str: "text", types.NoneType: "null"}


def describe(kind: Any) -> str:
    """A setting's type in words, such as ``an integer of at least 1 or null``."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = " and ".join(words for bound in args[1:] if (words := _bound(bound)))
        return f"{describe(args[0])} {bounds}".rstrip()
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        return "a list" if args[-1] is Ellipsis else f"a list of {len(args)}, each {describe(args[0])}"
    if is_dataclass(kind):
        return f"a section with the keys {', '.join(field.name for field in fields(kind))}"
    return "a mapping" if origin is not None else _PLAIN[kind]


def _bound(bound: object) -> str:
    if isinstance(bound, Ge):
        return f"of at least {bound.ge}"
    if isinstance(bound, Gt):
        return f"above {bound.gt}"
    return f"below {bound.lt}" if isinstance(bound, Lt) else ""
