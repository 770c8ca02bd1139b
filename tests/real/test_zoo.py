"""The zoo's models do what the other tests count on; transformers alone, no vLLM."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from .reference import load, reference_states, relative_error
from .zoo import EOS, FAMILIES, VOCABULARY, build

PROMPT = [(7 * index * index) % 990 + 7 for index in range(40)]


@pytest.fixture(scope="module", params=FAMILIES)
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(request.param, tmp_path_factory.mktemp(request.param) / "model")


def test_the_hooks_give_what_transformers_gives(model_folder: Path) -> None:
    states = reference_states(model_folder, [PROMPT])[0]
    with torch.inference_mode():
        output = load(model_folder)(
            torch.tensor([PROMPT]), output_hidden_states=True, use_cache=False
        )
    # The last entry there is after the final norm; the hooks' last is before it.
    assert len(output.hidden_states) == len(states) + 1
    for index, state in enumerate(states[:-1]):
        assert torch.equal(state, output.hidden_states[index + 1][0])
    assert relative_error(states[-1], output.hidden_states[-1][0]) > 0.1


def test_no_layer_looks_like_its_neighbour(model_folder: Path) -> None:
    states = reference_states(model_folder, [PROMPT])[0]
    distances = [
        float((later - earlier).norm() / later.norm()) for earlier, later in pairwise(states)
    ]
    assert min(distances) > 0.2
    assert max(float(state.abs().max()) for state in states) < 1e4


def test_every_earlier_token_matters_to_the_last_one(model_folder: Path) -> None:
    changed = [PROMPT[0] + 1, *PROMPT[1:]]
    states, others = reference_states(model_folder, [PROMPT, changed])
    assert relative_error(others[-1][-1:], states[-1][-1:]) > 1e-3


def test_the_folder_loads_as_a_users_would(model_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    assert len(tokenizer) == VOCABULARY
    assert tokenizer.eos_token_id == EOS
    assert tokenizer.convert_tokens_to_ids(["w7", "w999", "</s>"]) == [7, 999, EOS]
    config = AutoConfig.from_pretrained(model_folder, trust_remote_code=True)
    assert config.get_text_config().num_hidden_layers in (6, 8)


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    folders = [build("llama", tmp_path / str(n), seed=seed) for n, seed in enumerate((1, 1, 2))]
    first, again, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == again
    assert first != other


def test_a_wrong_row_is_not_averaged_away() -> None:
    right = torch.ones(1000, 4)
    wrong = right.clone()
    wrong[7] = 3.0
    assert relative_error(right, right) == 0.0
    assert relative_error(wrong, right) == 2.0
    wrong[7] = float("nan")
    assert relative_error(wrong, right) == float("inf")
    with pytest.raises(ValueError, match=r"got shape \(1, 4\), expected \(1000, 4\)"):
        relative_error(right[:1], right)
