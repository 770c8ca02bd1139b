"""A set of patches that is on as a whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from vllm_compat.errors import PatchError
from vllm_compat.patching.imports import (
    LOCK,
    Watcher,
    is_executing,
    unwatch,
    wait_for_import,
    watch,
    will_be_reported,
)
from vllm_compat.patching.patch import Patch, adds, locate, require, same_action
from vllm_compat.patching.slot import Slot, blame, clean, live, put_on, take_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

# A module object under the name it was imported by. By identity: one name may see several module
# objects over time, and one object may have several names.
_Modules: TypeAlias = dict[tuple[str, int], ModuleType]


class PatchSet:
    """Patches that are installed and reverted together.

    Modules that are imported are patched by `install`; the others when they are imported, after
    their code ran and before the importer gets them. A patch acts on the namespace it names:
    a module which did ``from target import f`` before needs a patch of its own, and a module
    that no patch names keeps what it copied, patched or not.

    Several patches of one place stack in the order given. One object reached through several
    modules, say a class, is patched once.

    Args:
        patches: what to do.
        verify: called as ``verify(module, patch)`` for each patch before anything in that module
            is changed; it raises to refuse.

    Raises:
        PatchError: an `Add` of something that is not a module's attribute.
    """

    def __init__(
        self,
        patches: Sequence[Patch],
        *,
        verify: Callable[[ModuleType, Patch], None] | None = None,
    ) -> None:
        for patch in patches:
            if adds(patch) and "." in patch.path:
                raise PatchError(
                    f"cannot declare {patch.describe()}",
                    found=f"the path {patch.path!r}",
                    needed="the bare name of a module's attribute",
                    next_step="use Replace on the class",
                )
        self._patches = tuple(patches)
        self._verify = verify
        self._names = sorted({patch.module for patch in patches})
        self._watcher = Watcher(self._lift, self._patch_executed)
        self._installed = False
        self._slots: list[Slot] = []
        self._patched: _Modules = {}

    @property
    def installed(self) -> bool:
        """Whether the set is on; a patch that fails at a later import turns it off."""
        return self._installed

    @property
    def foreign(self) -> tuple[str, ...]:
        """Say which targets had been wrapped already, and where that wrapper's code is from."""
        return tuple(slot.foreign for slot in self._slots if slot.foreign is not None)

    def install(self) -> None:
        """Patch what is imported, and arrange for what is not. Twice is once.

        Raises:
            PatchError: a patch cannot be made. Then no patch of the set is on.
        """
        with LOCK:
            self._installed = True
            watch(self._names, self._watcher)
        self._transact(self._present, wait_for=self._names)

    def revert(self) -> None:
        """Put every original back and forget about later imports. Twice is once.

        Raises:
            PatchError: other code patched over one of the patches. Then nothing was touched.
        """
        with LOCK:
            if self._installed:
                take_off(self._slots)
                self._slots = []
                self._patched = {}
                self._installed = False
                unwatch(self._names, self._watcher)

    def _lift(self, module: ModuleType) -> bool:
        """Clear the namespace of a module about to be executed again; whether it was patched.

        Its code must meet what it would meet without us. Classes of the earlier execution stay
        patched: there may be instances of them.
        """
        with LOCK:
            take_off([slot for slot in self._slots if slot.place.container is module])
            self._slots = [slot for slot in self._slots if slot.place.container is not module]
            known = [key for key, other in self._patched.items() if other is module]
            for key in known:
                del self._patched[key]
            return bool(known)

    def _patch_executed(self, name: str, module: ModuleType) -> None:
        executed = {(name, id(module)): module}
        with LOCK:
            if not self._installed:
                self._clean(executed)
                return
        self._transact(lambda: executed)

    def _clean(self, modules: _Modules) -> None:
        for (name, _), module in modules.items():
            clean(module, [patch for patch in self._patches if patch.module == name])

    def _present(self) -> _Modules:
        """Return the modules that are there and that no running import will report."""
        present: _Modules = {}
        for name in self._names:
            module = sys.modules.get(name)
            if module is None or will_be_reported(module):
                continue
            key = (name, id(module))
            if key not in self._patched and is_executing(module):
                raise PatchError(
                    f"cannot patch the module {name!r}",
                    found="an import of it began before and is waiting for this very call",
                    needed="a module that is imported completely, or not at all",
                    next_step="install the patches before or after that import, not during it",
                )
            present[key] = module
        return present

    def _transact(self, choose: Callable[[], _Modules], wait_for: Sequence[str] = ()) -> None:
        """Plan and commit under the lock; run foreign code in between, without it.

        Foreign code may import, and an import in another thread may be waiting for the lock.
        """
        try:
            for name in wait_for:
                wait_for_import(name)
            with LOCK:
                planned = self._due(choose)
                slots = self._plan(planned)
            self._prepare(slots)
            with LOCK:
                self._commit(planned, slots, choose)
        except BaseException as error:
            try:
                self.revert()
            except PatchError as stuck:
                raise PatchError(
                    f"{error}\nand the patches made before cannot be taken back:\n{stuck}"
                ) from error
            raise

    def _due(self, choose: Callable[[], _Modules]) -> _Modules:
        return {key: module for key, module in choose().items() if key not in self._patched}

    def _plan(self, modules: _Modules) -> list[Slot]:
        drafts: dict[tuple[int, str], Slot] = {}
        for (name, _), module in modules.items():
            for patch in self._patches:
                if patch.module != name:
                    continue
                place = locate(module, patch)
                known = drafts.get(place.key) or live.get(place.key)
                if known is None:
                    require(place, module, patch)
                    drafts[place.key] = Slot(self, place, module, patch)
                else:
                    self._share(known, patch)
        return list(drafts.values())

    def _share(self, known: Slot, patch: Patch) -> None:
        """Accept a patch for a place that has one: the same again, or one to stack."""
        if known.owner is self:
            if any(same_action(patch, earlier) for earlier in known.patches):
                return
            # Through two modules, their order would be the order of the imports.
            planned = live.get(known.place.key) is not known
            if planned and known.patches[0].module == patch.module and not adds(patch):
                known.patches.append(patch)
                return
        whose = "this set" if known.owner is self else "another live set"
        raise PatchError(
            f"cannot patch {patch.describe()}",
            found=f"{whose} patches the same object already: {known.label}",
            needed="one set for an object, which reaches it through one module",
            next_step="revert the other set, or declare both patches in one",
        )

    def _prepare(self, slots: Sequence[Slot]) -> None:
        if self._verify is not None:
            for slot in slots:
                for patch in slot.patches:
                    with blame(patch):
                        self._verify(slot.module, patch)
        for slot in slots:
            slot.build()

    def _commit(
        self, planned: _Modules, slots: Sequence[Slot], choose: Callable[[], _Modules]
    ) -> None:
        if not self._installed:
            # A revert came in between: as if all this had come before it.
            self._clean(planned)
            return
        # Another thread may have imported, reloaded or patched some of them meanwhile.
        due = {key: planned[key] for key in self._due(choose) if key in planned}
        fresh = [slot for slot in slots if (slot.patches[0].module, id(slot.module)) in due]
        fresh = [slot for slot in fresh if not self._is_on(slot)]
        put_on(fresh)
        self._slots += fresh
        self._patched |= due

    def _is_on(self, slot: Slot) -> bool:
        """Whether the place, planned as free, has got these patches through another module."""
        known = live.get(slot.place.key)
        if known is None:
            return False
        for patch in slot.patches:
            self._share(known, patch)
        return True
