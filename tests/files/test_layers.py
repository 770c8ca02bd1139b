import pytest

from vllm_compat.extraction.errors import LayerIdError
from vllm_compat.extraction.layers import check_layer_ids, from_vllm, to_vllm


def test_the_same_states_are_one_higher_in_vllm():
    assert to_vllm([2, 4, 5, 7]) == [3, 5, 6, 8]
    assert from_vllm([3, 5, 6, 8]) == [2, 4, 5, 7]
    # vLLM's and speculators 0.9's default of a model of 32 layers: the last is the layer count
    assert from_vllm([2, 16, 29, 32]) == [1, 15, 28, 31]


def test_the_embeddings_are_no_layers_output():
    with pytest.raises(LayerIdError, match="0 is the embeddings"):
        from_vllm([0, 16])


def test_order_is_kept():
    assert check_layer_ids((5, 1, 7), 8) == [5, 1, 7]


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([], "found: no layer"),
        ([1, 2, 1], r"found: \[1\] more than once"),
        ([0, 8], r"found: \[8\], which the model does not have \(8 is what vLLM calls"),
        ([0, 9], r"found: \[9\], which the model does not have$"),
        ([-1, 2], r"found: \[-1\], which the model does not have$"),
        ([1.0], r"found: not integers: \[1.0\]"),
        ([True], r"found: not integers: \[True\]"),
    ],
)
def test_wrong_ids_are_named(ids, says):
    with pytest.raises(LayerIdError, match=f"(?m){says}"):
        check_layer_ids(ids, 8)
