"""One convention for layer ids, and the ways to and from vLLM's.

Here, as in speculators 0.3 and 0.4, id ``i`` is the output of decoder layer ``i`` (0-based), with
the residual added; ``n - 1``, of ``n`` layers, is the last one, before the final norm.

vLLM (``extract_hidden_states``, ``eagle_aux_hidden_state_layer_ids``), and with it speculators 0.5
and later, count what goes *into* a layer: id ``k`` is the state before layer ``k``, which is the
output of layer ``k - 1``. Their 0 is the embeddings, which no decoder layer puts out, and their
``n`` is the last layer's output. The same states are therefore one id higher there:

    states                      here     vLLM, speculators >= 0.5
    embeddings                  none     0
    output of decoder layer i   i        i + 1
    output of the last one      n - 1    n

The one exception is in how the states come back. vLLM gives them by rising layer, whatever the
order asked for; here they come in the order asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_compat.extraction.errors import LayerIdError

CONVENTION = "id i: output of decoder layer i (0-based), residual added, before the final norm"


def check_layer_ids(layer_ids: Sequence[int], num_layers: int) -> list[int]:
    """The ids as a list, each of them a layer of a model of ``num_layers``, none twice.

    Raises:
        LayerIdError: none given, one given twice, or one that the model does not have.
    """
    ids = list(layer_ids)
    if not ids:
        raise _refuse(ids, "no layer", num_layers)
    others = [each for each in ids if type(each) is not int]
    if others:
        raise _refuse(ids, f"not integers: {others}", num_layers)
    outside = [i for i in ids if not 0 <= i < num_layers]
    if outside:
        hint = f"{outside}, which the model does not have"
        if num_layers in outside:
            hint += f" ({num_layers} is what vLLM calls the last layer's output)"
        raise _refuse(ids, hint, num_layers)
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise _refuse(ids, f"{twice} more than once", num_layers)
    return ids


def _refuse(ids: list[int], found: str, num_layers: int) -> LayerIdError:
    return LayerIdError(
        f"layer ids {ids} of a model of {num_layers} decoder layers",
        found=found,
        needed=f"distinct ids from 0 to {num_layers - 1}; {CONVENTION}",
        next_step="ids as vLLM or speculators 0.5 and later count them are one higher: "
        "vllm_compat.extraction.layers.from_vllm() converts",
    )


def to_vllm(layer_ids: Sequence[int]) -> list[int]:
    """What vLLM calls these layers."""
    return [i + 1 for i in layer_ids]


def from_vllm(layer_ids: Sequence[int]) -> list[int]:
    """What these layers of vLLM's are called here.

    Raises:
        LayerIdError: 0, the embeddings: no decoder layer's output.
    """
    if any(i < 1 for i in layer_ids):
        raise LayerIdError(
            f"layer ids {list(layer_ids)} in vLLM's way of counting",
            found="0 is the embeddings; less is nothing",
            needed="ids from 1: the state before layer k is the output of layer k - 1",
            next_step="leave the embeddings out: a trainer can look them up from the token ids",
        )
    return [i - 1 for i in layer_ids]
