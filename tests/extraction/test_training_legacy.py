"""speculators 0.4 trains EAGLE-3 on ``data_{i}.pt``: its data set, draft model and loss.

Its ``Trainer`` moves the model to a CUDA device by number; its steps are done here one by one.
"""

import pytest
import torch
from speculators.models.eagle3 import attention
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.train import data as theirs
from torch.nn.attention.flex_attention import create_mask

from tests.extraction import training
from tests.real.reference import load


def dense_attention(_module, query, key, value, attention_mask, *, scaling=None, **_):
    """Theirs, in operations that have a gradient on a CPU, which flex attention there has not."""
    mask = create_mask(
        attention_mask.mask_mod, None, None, query.shape[2], key.shape[2], device="cpu"
    )
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


@pytest.fixture
def batch(tmp_path, model):
    training.write_states(tmp_path, model("llama"), "legacy")
    files = [str(path) for path in theirs.list_files(tmp_path)]
    dataset = theirs.Eagle3SampleFileDataset(
        training.LENGTH, file_list=files, hidden_states_dtype=torch.float
    )
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=len(files), collate_fn=theirs.create_collate_fn(training.LENGTH)
    )
    [batch] = loader
    return batch


@pytest.fixture
def draft(model, monkeypatch):
    attention.ALL_ATTENTION_FUNCTIONS.register("simple_flex_attention", dense_attention)
    torch.manual_seed(0)
    config = training.draft_config(model("llama"))
    config._attn_implementation = "simple_flex_attention"
    yield Eagle3DraftModel.from_training_args(
        config,
        draft_vocab_size=config.vocab_size,
        norm_before_residual=False,
        ttt_steps=3,
        verifier_name_or_path=str(model("llama")),
    )
    attention.ALL_ATTENTION_FUNCTIONS.register(
        "simple_flex_attention", attention.flex_attention_forward
    )


def test_the_last_layer_is_what_their_verifier_head_takes(batch, draft, model):
    with torch.inference_mode():
        targets = draft.verifier_lm_head(draft.verifier_norm(batch["verifier_last_hidden_states"]))
        first = int(batch["lengths"][0])
        [ids] = [each["input_ids"] for each in training.DATA
                 if each["input_ids"][1:] == batch["input_ids"][0, :first].tolist()]  # fmt: skip
        logits = load(model("llama"))(torch.tensor([ids])).logits
    assert torch.allclose(targets[0, :first], logits[0, 1:], rtol=1e-3, atol=1e-3)


def test_the_loss_falls(batch, draft):
    assert batch["lengths"].sum() == training.TOTAL - len(training.DATA)
    losses = training.losses(draft, batch, ttt_steps=3)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]
