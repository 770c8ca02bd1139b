"""What goes wrong, said the same way everywhere: what, found, needed, next step."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class VllmCompatError(Exception):
    """Base of every error of this package.

    Args:
        what: what is wrong and where.
        found: what was seen there.
        needed: what should have been there.
        next_step: what the reader can do about it.
    """

    def __init__(
        self, what: str, *, found: str = "", needed: str = "", next_step: str = ""
    ) -> None:
        lines = [what]
        for label, text in (("found", found), ("needed", needed), ("next step", next_step)):
            if text:
                lines.append(f"  {label}: {text}")
        super().__init__("\n".join(lines))
        self.what = what
        self.found = found
        self.needed = needed
        self.next_step = next_step

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders: rebuild them without running a subclass's own signature.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[VllmCompatError], args: tuple[Any, ...], state: dict[str, Any]
) -> VllmCompatError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class PatchError(VllmCompatError):
    """A patch could not be put on, or could not be taken off exactly."""


class NotInstalledError(VllmCompatError):
    """vLLM or speculators is not installed where Python looks."""


class IncompatibleVllmError(VllmCompatError):
    """Call sites of speculators that no adapter makes work on the installed vLLM.

    ``offences`` holds one text for each of them, all at once.
    """

    def __init__(self, what: str, offences: tuple[str, ...], *, next_step: str = "") -> None:
        super().__init__("\n".join([what, *offences]), next_step=next_step)
        self.offences = offences


class WorkerNotAdaptedError(VllmCompatError):
    """A worker process runs without the adapters its parent applied."""


class UnsupportedModelError(VllmCompatError):
    """A model whose hidden states could not be captured with certainty."""


class CaptureError(VllmCompatError):
    """States that failed a check on their way from the model to the caller."""


class PromptError(VllmCompatError, ValueError):
    """A prompt that cannot be run; the generator remains usable."""
