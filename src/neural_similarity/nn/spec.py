"""The base of all specs: frozen dataclasses, printed as the call that makes them."""

from dataclasses import MISSING, Field, fields
from typing import Any, cast


class Spec:
    """Base of the frozen dataclasses; their decorator has `repr=False`."""

    def __repr__(self) -> str:
        """The constructor call, without fields at their defaults."""
        given = {
            field.name: getattr(self, field.name)
            for field in fields(cast(Any, self))
            if getattr(self, field.name) != _field_default(field)
        }
        options = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"{type(self).__name__}({options})"


def written_out(value: Any) -> str:
    """The constructor call with every field, whose meaning does not change with the defaults."""
    if not isinstance(value, Spec):
        return repr(value)
    parts = ((field.name, getattr(value, field.name)) for field in fields(cast(Any, value)))
    options = ", ".join(f"{name}={written_out(part)}" for name, part in parts)
    return f"{type(value).__name__}({options})"


def _field_default(field: "Field[Any]") -> Any:
    """A field's default, or MISSING, which equals no value."""
    return field.default if field.default_factory is MISSING else field.default_factory()
