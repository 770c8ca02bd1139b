"""The parts of the capture by themselves, on modules made for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vllm_compat import CaptureError, UnsupportedModelError
from vllm_compat.adapters.generate import check
from vllm_compat.capture.batch import Batch, PersistentBatchReader, Segment, reader_for
from vllm_compat.capture.recorder import _check_positions
from vllm_compat.capture.residual import Calibration, refuse_scaled_float16, split
from vllm_compat.capture.stack import find_stack, language_model

HIDDEN = 16


class Norm(nn.Module):
    """RMS norm that adds the residual it is given, or leaves it alone."""

    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.adds = adds

    def forward(self, x, residual=None):
        if residual is None:
            return x / x.norm(dim=-1, keepdim=True)
        if self.adds:
            x += residual  # in place, as fused norms do
        return x / x.norm(dim=-1, keepdim=True), residual


class Layer(nn.Module):
    def __init__(self, output) -> None:
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output(x, torch.randn_like(x))


class Model(nn.Module):
    def __init__(self, output, norm, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(output) for _ in range(count))
        self.norm = norm

    def forward(self, x):
        for layer in self.layers:
            out = layer(x)
            x = out[0] if isinstance(out, tuple) else out
        if self.norm is None:
            return x
        return self.norm(*out) if isinstance(out, tuple) else self.norm(out)


def reading(model: Model) -> str:
    calibration = Calibration(model.layers, model, lambda tensor: tensor)
    model(torch.randn(5, HIDDEN))
    return calibration.finish()


def test_a_pair_that_is_added() -> None:
    assert reading(Model(lambda x, r: (x, r), Norm(adds=True))) == "hidden + residual"


def test_a_pair_whose_first_is_the_state_already() -> None:
    assert reading(Model(lambda x, r: (x, r), Norm(adds=False))) == "hidden"


def test_a_tensor() -> None:
    assert reading(Model(lambda x, r: x + r, Norm(adds=True))) == "hidden"


def test_a_tensor_in_a_batch_of_one() -> None:
    model = Model(lambda x, r: (x + r.reshape(x.shape))[None] if x.ndim == 2 else x + r, Norm(True))
    assert reading(model) == "hidden"


def test_a_norm_of_something_else_is_refused() -> None:
    class Doubling(Norm):
        def forward(self, x, residual=None):
            out = super().forward(x, residual)
            return out if residual is None else (out[0] + 1, out[1])

    with pytest.raises(UnsupportedModelError, match="cannot tell how Layer carries its residual"):
        reading(Model(lambda x, r: (x, r), Doubling(True)))


def test_readings_that_cannot_be_told_apart_are_refused() -> None:
    # The second is the first over again, as far as a norm can see.
    with pytest.raises(UnsupportedModelError, match="the others 4 times off"):
        reading(Model(lambda x, r: (x, x.clone()), Norm(adds=True)))


def test_a_last_layer_that_adds_little_is_still_told_apart() -> None:
    assert reading(Model(lambda x, r: (x, x + 0.02 * r), Norm(adds=False))) == "hidden"
    assert reading(Model(lambda x, r: (0.02 * r, x), Norm(adds=True))) == "hidden + residual"


def test_a_pair_without_a_norm_to_ask_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no module after it to ask"):
        reading(Model(lambda x, r: (x, r), None))


def test_several_streams_a_token_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="does not return one state for each token"):
        split(torch.zeros(4, 5, HIDDEN))


def test_float16_on_layers_that_scale_for_it_is_refused() -> None:
    class Scaling(nn.Module):
        def forward(self, x):
            return x / 2 if x.dtype == torch.float16 else x

    refuse_scaled_float16(Scaling(), torch.bfloat16)
    refuse_scaled_float16(Layer(None), torch.float16)
    with pytest.raises(UnsupportedModelError, match="Scaling scales its residual stream"):
        refuse_scaled_float16(Scaling(), torch.float16)


def test_the_stack_is_found_by_shape_and_not_inside_itself() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision = nn.ModuleList(nn.Identity() for _ in range(3))
            self.inner = Model(None, None)
            for layer in self.inner.layers:
                layer.experts = nn.ModuleList(nn.Identity() for _ in range(3))

        def get_language_model(self):
            return self.inner

    model = Wrapper()
    assert language_model(model) is model.inner
    assert find_stack(model, 3).layers is model.inner.layers
    assert find_stack(model, 3).owner is model.inner
    del Wrapper.get_language_model
    with pytest.raises(UnsupportedModelError, match=r"vision, inner\.layers"):
        find_stack(model, 3)
    with pytest.raises(UnsupportedModelError, match="none"):
        find_stack(model, 4)


def plan(**tokens: int) -> SimpleNamespace:
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=0) for name in tokens],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
    )


POSITIONS = torch.tensor([0, 1, 2, 0, 1, 0, 0])


@pytest.mark.parametrize(
    "positions", [POSITIONS, SimpleNamespace(np=None, cpu=POSITIONS, gpu=torch.zeros(7))]
)
def test_rows_follow_the_batch_and_not_the_plan(positions) -> None:
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=["b", "gone", "a"]),
        input_ids=SimpleNamespace(np=None, cpu=None, gpu=torch.arange(9)),
        positions=positions,
    )
    reader = reader_for(runner)
    assert isinstance(reader, PersistentBatchReader)
    batch = reader.read(plan(a=2, b=3))
    assert batch.segments == [Segment("b", 0, 3), Segment("a", 0, 2)]
    assert batch.input_ids.tolist() == [0, 1, 2, 3, 4]
    _check_positions(batch)


def test_a_batch_other_than_planned_is_an_error() -> None:
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=["a"]),
        input_ids=torch.zeros(4),
        positions=torch.zeros(4),
    )
    with pytest.raises(CaptureError, match="other tokens than the scheduler planned"):
        reader_for(runner).read(plan(a=2, b=1))


def test_a_runner_of_another_kind_is_an_error() -> None:
    with pytest.raises(CaptureError, match="cannot read the batch order"):
        reader_for(SimpleNamespace())


def test_positions_that_contradict_the_order_are_an_error() -> None:
    batch = Batch([Segment("a", 0, 2), Segment("b", 4, 1)], torch.zeros(3), torch.tensor([0, 1, 0]))
    with pytest.raises(CaptureError, match="row 2 of a step holds another position"):
        _check_positions(batch)


def result(states: torch.Tensor, ids: list[int]) -> dict:
    finite = torch.stack([torch.ones(len(ids)).bool(), states.isfinite().all(dim=1)], dim=1)
    return {"hidden_states": [torch.ones(len(ids), 4), states, finite, torch.tensor(ids)]}


def test_a_right_result_loses_its_ids_and_nothing_else() -> None:
    good = result(torch.ones(3, 4), [5, 6, 7])
    check(0, [5, 6, 7], good, [2, 9])
    assert [tuple(states.shape) for states in good["hidden_states"]] == [(3, 4), (3, 4)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {
                **(good := result(torch.ones(3, 4), [5, 6, 7])),
                "hidden_states": [
                    good["hidden_states"][0],
                    torch.ones(2, 4),
                    *good["hidden_states"][2:],
                ],
            },
            "prompt 8, layer 9: wrong number of states",
        ),
        (result(torch.ones(3, 4), [5, 6, 8]), "prompt 8 has the states of other tokens"),
        (
            result(torch.tensor([[1.0], [float("nan")], [1.0]]), [5, 6, 7]),
            "prompt 8, layer 9: states that are not finite\n  found: NaN or infinity at token 1",
        ),
        (
            {"hidden_states": [torch.ones(3, 4), torch.ones(3, 1), torch.tensor([5, 6, 7])]},
            "states of 1 layers",
        ),
    ],
)
def test_a_wrong_result_is_named(bad: dict, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        check(8, [5, 6, 7], bad, [2, 9])
