"""One patched place: what was there, what is there now, and whose it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from vllm_compat.errors import PatchError
from vllm_compat.patching.imports import imports_running
from vllm_compat.patching.patch import MISSING, Patch, Place, Replace, Wrap, adds, same_action
from vllm_compat.patching.wrapping import foreign_wrapper, identify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Slot:
    """A place with the patches that stack on it, first one innermost.

    Attributes:
        owner: the set it belongs to.
        module: the module the place was reached through.
        found: the entry before, as seen when planning; MISSING if there was none.
        base: what the first patch gets: the entry or the one inherited.
        original: what is put back; MISSING removes the entry.
        value: what the patches make of ``base``, once `build` has run.
        foreign: who wrapped ``base`` before us, as a text; None if nobody did.
    """

    def __init__(self, owner: object, place: Place, module: ModuleType, patch: Patch) -> None:
        self.owner = owner
        self.place = place
        self.module = module
        self.patches = [patch]
        self.found = place.read()
        self.base = see_through(place.lookup(), patch, (*live.values(), *retired))
        self.original = MISSING if self.found is MISSING else self.base
        self.value: Any = MISSING
        self.foreign: str | None = None

    @property
    def label(self) -> str:
        """Name the patches."""
        return " + ".join(patch.describe() for patch in self.patches)

    def build(self) -> None:
        """Make the new value; changes nothing yet.

        Raises:
            PatchError: a factory failed, or the target cannot be wrapped.
        """
        wrapped_by = foreign_wrapper(self.base)
        if wrapped_by is not None:
            self.foreign = f"{self.label}: already wrapped by {wrapped_by}"
        self.value = self.base
        for patch in self.patches:
            with blame(patch):
                self.value = patch.build(self.value, self.module)
            if adds(patch):
                self.base = self.value

    def hands_on(self, patch: Patch) -> bool:
        """Whether a module that holds our value, and is to get ``patch``, copied it from here."""
        last = self.patches[-1]
        if isinstance(last, Wrap):
            return True  # the wrapper is ours alone
        # Anybody may hold the value of a Replace, say a number, without having copied it.
        return (
            isinstance(last, Replace)
            and same_action(last, patch)
            and last.path.rpartition(".")[2] == patch.path.rpartition(".")[2]
            and last.module != patch.module
        )


live: dict[tuple[int, str], Slot] = {}
"""Every slot whose value is in its place, of all sets. Guarded by the lock of the imports."""

retired: list[Slot] = []
"""Slots taken off while a watched module was executing, which may have copied their values."""


def see_through(value: Any, patch: Patch, slots: Iterable[Slot]) -> Any:
    """Return the original for a copy of the value of one of these slots, else the value.

    A module imported after its source was patched copies our value. It has to end up like one
    imported before: patched once, on top of the original, and given that one back.
    """
    for slot in slots:
        if slot.value is value and slot.hands_on(patch):
            return slot.base
    return value


def clean(module: ModuleType, patches: Iterable[Patch]) -> None:
    """Give a module the originals for what it copied before its set was taken off."""
    for patch in patches:
        place = Place(module, patch.path)
        value = place.read()
        original = see_through(value, patch, retired)
        if original is not value:
            place.write(original)


def put_on(slots: Sequence[Slot]) -> None:
    """Put the values of these slots in place, all or none. The caller holds the lock.

    Raises:
        PatchError: a place changed since it was planned, or cannot be written.
    """
    for slot in slots:
        current = slot.place.read()
        if slot.place.key in live or current is not slot.found:
            raise PatchError(
                f"cannot patch {slot.label}",
                found=f"it became {_name(current)} while the patch was prepared",
                needed="a target that stays as it is",
                next_step="install again",
            )
    try:
        for slot in slots:
            with blame(slot.patches[0]):
                slot.place.write(slot.value)
    except BaseException:
        for slot in slots:
            if slot.place.read() is not slot.found:
                slot.place.write(slot.found)
        raise
    live.update((slot.place.key, slot) for slot in slots)


def take_off(slots: Sequence[Slot]) -> None:
    """Put the originals back, all or none. The caller holds the lock.

    Raises:
        PatchError: another value is where ours should be.
    """
    for slot in slots:
        current = slot.place.read()
        if current is not slot.value:
            raise PatchError(
                f"cannot take off {slot.label}",
                found=f"found {_name(current)}, expected our wrapper",
                needed="the value that was put there; taking off what others put on top is theirs",
                next_step="revert what was patched later, then this",
            )
    for slot in slots:
        slot.place.write(slot.original)
        del live[slot.place.key]
    # Asked last: an import that starts from here on finds the originals.
    retired[:] = [*retired, *slots] if imports_running() else []


@contextmanager
def blame(patch: Patch) -> Iterator[None]:
    """Turn any failure into a `PatchError` that names the patch."""
    try:
        yield
    except PatchError:
        raise
    except Exception as error:
        raise PatchError(
            f"cannot patch {patch.describe()}",
            found=f"{type(error).__name__}: {error}",
            needed="a target this patch fits",
            next_step="no patch of the set is in force now; mend the cause and install it again",
        ) from error


def _name(value: Any) -> str:
    return "nothing" if value is MISSING else identify(value)
