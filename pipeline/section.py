"""A section of settings: a frozen dataclass that checks itself.

In: values from TOML, JSON or a form. Out: an instance that has been checked, and the class of its overrides. The decision
that matters: limits stand once, in `field(metadata=...)`, where both `__post_init__` and pydantic (Prefect's form and
server) read them. Validation rejects; it never repairs.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from .errors import SettingsError

_WANTED: dict[type, str] = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "pattern": ("matching", lambda value, pattern: re.fullmatch(pattern, value) is not None),
}


def setting(description: str, default: Any = dataclasses.MISSING, **limits: float | str) -> Any:
    """A dataclass field with a description and limits (`gt`, `ge`, `lt`, `le`, `pattern`) that pydantic understands.

    Without a default it is part of a recipe, and each preset states it.
    """
    return field(default=default, metadata={"description": description, **limits})


@dataclass(frozen=True)
class Settings:
    """Base of the settings of a stage: checks itself, reads strictly, takes overrides."""

    section: ClassVar[str] = "settings"
    not_in_key: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for entry in dataclasses.fields(self):
            self._check(entry, hints[entry.name])

    def _check(self, entry: "dataclasses.Field[Any]", kind: Any) -> None:
        value: Any = getattr(self, entry.name)
        name = f"{self.section}.{entry.name}"
        if kind is float and type(value) is int:
            with suppress(OverflowError):  # then it is refused below, as no finite number
                object.__setattr__(self, entry.name, value := float(value))
        if type(value) is not kind or (kind is float and not math.isfinite(value)):
            raise SettingsError(f"{name}: got {value!r}, wanted {_WANTED[kind]} ({entry.metadata['description']})")
        for limit, (sign, holds) in _LIMITS.items():
            if limit in entry.metadata and not holds(value, entry.metadata[limit]):
                wanted = f"a value {sign} {entry.metadata[limit]}"
                raise SettingsError(f"{name}: got {value!r}, wanted {wanted} ({entry.metadata['description']})")

    @classmethod
    def read(cls, values: object) -> Self:
        """Build from a dictionary that may leave out fields but may not hold unknown ones."""
        if not isinstance(values, dict):
            raise SettingsError(f"{cls.section}: got {values!r}, wanted a table of settings")
        known = [entry.name for entry in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise SettingsError(f"{cls.section}.{name}: no such setting; {cls.section} has {', '.join(known)}")
        for entry in dataclasses.fields(cls):
            if entry.default is dataclasses.MISSING and entry.name not in values:
                raise SettingsError(f"{cls.section}.{entry.name}: missing; it is {entry.metadata['description']}")
        return cls(**values)

    def override(self, overrides: object) -> Self:
        """A copy in which every field of `overrides` that is not None replaces ours.

        :param overrides: an instance of the partial class of this one, a dictionary, or None.
        """
        if overrides is None:
            return self
        if dataclasses.is_dataclass(overrides) and not isinstance(overrides, type):
            overrides = dataclasses.asdict(overrides)
        if not isinstance(overrides, dict):
            raise SettingsError(f"{self.section}: got {overrides!r}, wanted a table of settings")
        return type(self).read(dataclasses.asdict(self) | {name: value for name, value in overrides.items() if value is not None})

    def as_dict(self) -> dict[str, Any]:
        """Every field by value, ready for JSON."""
        return dataclasses.asdict(self)

    def for_key(self) -> dict[str, Any]:
        """The fields that change a stage's output."""
        return {name: value for name, value in self.as_dict().items() if name not in self.not_in_key}


_S = TypeVar("_S", bound=Settings)
_CHOICES = re.compile(r"\^\(([\w|]+)\)\$")
"""A pattern that is nothing but a list of words."""


def partial(kind: type[_S]) -> type[Any]:
    """The class of overrides of a settings class: the same fields and limits, each None as the preset says."""
    hints = get_type_hints(kind)
    fields = []
    for entry in dataclasses.fields(kind):
        form = {} if hints[entry.name] is bool else {"json_schema_extra": _simplify}  # a switch cannot be left alone
        fields.append((entry.name, hints[entry.name] | None, field(default=None, metadata={**entry.metadata, **form})))
    name = kind.__name__.replace("Settings", "Overrides")
    namespace = {
        "__doc__": f"{kind.__doc__} Empty: as the preset says.",
        "__module__": __name__,
        "__pydantic_config__": {
            "extra": "forbid",
            "title": f"{kind.section} settings",
        },  # a misspelt setting is an error in Prefect's form too
    }
    return dataclasses.make_dataclass(name, fields, frozen=True, namespace=namespace)


def _simplify(schema: dict[str, Any]) -> None:
    """Have a form show one input, empty at first, where it would ask first whether there is a value, and a list where values are few."""
    schema |= schema.pop("anyOf")[0]
    del schema["default"]
    if choices := _CHOICES.fullmatch(schema.get("pattern", "")):
        del schema["pattern"]
        schema["enum"] = choices[1].split("|")
