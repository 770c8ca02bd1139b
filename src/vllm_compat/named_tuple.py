"""Named tuples without `typing`.

`apply` runs at the start of every process. `typing` and its `NamedTuple`, which compiles a
constructor for each class, would be a tenth of what that costs; `dataclasses` would be more.
Modules on that path import `typing` for the type checker alone, and make their values of this.
"""

__all__ = ["NamedTuple"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from operator import itemgetter

    class _Kind(type):
        def __new__(cls, name, bases, namespace):
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace[field] for field in fields if field in namespace}
            namespace |= {field: property(itemgetter(i)) for i, field in enumerate(fields)}
            namespace |= {"__slots__": (), "_fields": fields, "_field_defaults": defaults}
            namespace["__match_args__"] = fields
            return super().__new__(cls, name, bases, namespace)

    class NamedTuple(tuple, metaclass=_Kind):
        """A tuple with names for its fields, as ``typing.NamedTuple`` makes it."""

        def __new__(cls, *values, **named):
            fields = cls._fields
            if named or len(values) != len(fields):
                values = (*values, *cls._rest(fields[len(values) :], named))
                if named or len(values) != len(fields):
                    raise TypeError(f"{cls.__name__} takes the fields {', '.join(fields)}")
            return tuple.__new__(cls, values)

        @classmethod
        def _rest(cls, fields, named):
            """The values of ``fields``, taken out of ``named`` where they are given there."""
            for field in fields:
                if field in named:
                    yield named.pop(field)
                elif field in cls._field_defaults:
                    yield cls._field_defaults[field]

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            pairs = zip(self._fields, self, strict=True)
            return (
                f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"
            )

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes):
            return type(self)(**{**self._asdict(), **changes})
