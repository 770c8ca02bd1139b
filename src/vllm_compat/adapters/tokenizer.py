"""``AutoTokenizer.from_pretrained``: a tokenizer that is code of the model's, where that is wanted.

speculators never passes ``trust_remote_code`` here, so the tokenizer of a model such as Kimi-K2.5
cannot be loaded. To pass it runs code that came with the model, which is the caller's to allow:
``vllm_compat.apply(trust_remote_code=True)``.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.context import GENERATOR, Context
from vllm_compat.errors import VllmCompatError
from vllm_compat.patching import Patch, Replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYMBOL = "transformers:AutoTokenizer.from_pretrained"


def needed(context: Context) -> Decision:
    if context.settings.trust_remote_code:
        return Decision("adapted", "loads tokenizers that are code of the model's, as allowed")
    return Decision("adapted", "refuses tokenizers that are code of the model's, and says how")


class TokenizerLoader:
    """Makes speculators' name ``AutoTokenizer`` say whether remote code is trusted."""

    def __init__(self, trust_remote_code: bool) -> None:
        self.trust_remote_code = trust_remote_code

    def __call__(self, auto_tokenizer: Any) -> Any:
        import wrapt

        trust = self.trust_remote_code

        class AutoTokenizer(wrapt.ObjectProxy):  # type: ignore[type-arg]
            def from_pretrained(self, *args: Any, **kwargs: Any) -> Any:
                kwargs.setdefault("trust_remote_code", trust)
                try:
                    return self.__wrapped__.from_pretrained(*args, **kwargs)
                except ValueError as error:
                    if trust or "trust_remote_code" not in str(error):
                        raise
                    raise VllmCompatError(
                        f"the tokenizer of {args[0]} is code that came with the model",
                        found="trust_remote_code not allowed",
                        needed="your permission to run that code",
                        next_step="read it, then vllm_compat.apply(trust_remote_code=True)",
                    ) from error

        return AutoTokenizer(auto_tokenizer)


def patches(context: Context) -> Sequence[Patch]:
    loader = TokenizerLoader(context.settings.trust_remote_code)
    return [Replace(GENERATOR, "AutoTokenizer", loader, "tokenizer")]


ADAPTER = Adapter(
    name="tokenizer",
    symbol=SYMBOL,
    call_site=f"{GENERATOR}:VllmHiddenStatesGenerator.__init__",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "speculators 0.3.0",
            "",
            "never passes trust_remote_code",
            kind="fault",
            at="AutoTokenizer.from_pretrained",
        ),
    ),
    removal="speculators passes trust_remote_code on",
    needed=needed,
    patches=patches,
)
