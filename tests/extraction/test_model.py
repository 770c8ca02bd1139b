"""What is known of a model before it is loaded."""

import json

import pytest

from tests.extraction.runs import needs_code
from vllm_compat.errors import CaptureError, UnsupportedModelError
from vllm_compat.extraction import run
from vllm_compat.extraction.errors import LayerIdError
from vllm_compat.extraction.model import ModelShape, read_shape


@pytest.mark.parametrize(
    ("family", "layers", "wrapped", "eagle3"),
    [
        ("llama", 8, False, [2, 4, 5, 7]),
        ("deepseek_v3", 6, False, [2, 3, 3, 5]),
        ("kimi_k25", 6, True, [2, 3, 3, 5]),
    ],
)
def test_shapes(model, family, layers, wrapped, eagle3):
    shape = read_shape(str(model(family)), trust_remote_code=family == "kimi_k25")
    found = shape.num_layers, shape.hidden_size, shape.vocab_size, shape.dtype, shape.multimodal
    assert found == (layers, 128, 1000, "float32", wrapped)
    assert shape.eagle3_layers() == eagle3


@pytest.mark.parametrize(
    ("stored", "asked", "runs"),
    [
        ("float32", "auto", "bfloat16"),
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float16"),
        ("float32", "float32", "float32"),
        ("bfloat16", "float", "float32"),
        ("bfloat16", "half", "float16"),
    ],
)
def test_the_dtype_it_runs_in(stored, asked, runs):
    assert ModelShape({}, 8, 128, 1000, stored, False).run_dtype(asked) == runs


def test_eagle3_layers_of_kimi_k25():
    assert ModelShape({}, 61, 7168, 163840, "bfloat16", True).eagle3_layers() == [2, 30, 58, 60]


def test_code_that_may_not_run(tmp_path):
    needs_code(tmp_path)
    with pytest.raises(UnsupportedModelError, match="cannot read the config of") as error:
        read_shape(str(tmp_path), trust_remote_code=False)
    assert not (tmp_path / "ran").exists()
    assert "trust_remote_code=True runs the code that came with the model" in str(error.value)


def test_no_model_there(tmp_path):
    with pytest.raises(UnsupportedModelError, match="cannot read the config of") as error:
        read_shape(str(tmp_path / "nowhere"), trust_remote_code=False)
    assert error.value.needed == "a folder with config.json"


def test_a_model_without_decoder_layers(tmp_path):
    config = {"model_type": "resnet", "architectures": ["ResNetModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="num_hidden_layers, hidden_size, vocab_size"):
        read_shape(str(tmp_path), trust_remote_code=False)


def options(model, folder, **changes):
    return run.Options(str(model("llama")), str(folder), **changes)


def test_what_is_refused_before_the_target_is_touched(tmp_path, model):
    folder = tmp_path / "out"
    with pytest.raises(LayerIdError, match="8 is what vLLM calls the last layer's output"):
        run.extract([[1]], options(model, folder, layer_ids=(2, 8)))
    with pytest.raises(CaptureError, match="extraction over pipeline stages"):
        run.extract([[1]], options(model, folder, engine={"pipeline_parallel_size": 2}))
    assert not folder.exists()


def test_two_equal_layers_of_a_small_model_are_refused(tmp_path, model):
    with pytest.raises(LayerIdError, match="more than once"):
        run.extract([[1]], run.Options(str(model("deepseek_v3")), str(tmp_path)))
