"""All adapters, in the order in which they are put on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_compat.adapters.adapter import Adapter


class Registry:
    """A frozen sequence of adapters with unique names.

    Raises:
        ValueError: two adapters of one name.
    """

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._adapters = tuple(adapters)
        names = [adapter.name for adapter in self._adapters]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"more than one adapter is called {', '.join(twice)}")

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters)

    def __len__(self) -> int:
        return len(self._adapters)

    def __getitem__(self, name: str) -> Adapter:
        for adapter in self._adapters:
            if adapter.name == name:
                return adapter
        raise KeyError(name)

    def names(self) -> tuple[str, ...]:
        """The adapters' names, in order."""
        return tuple(adapter.name for adapter in self._adapters)
