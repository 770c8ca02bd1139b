"""speculators 0.9 trains EAGLE-3 on ``hs_{i}.safetensors``: its data set, draft model and loss.

Its ``Trainer`` moves the model to a CUDA device by number; its steps are done here one by one.
"""

import pytest
import torch
from speculators.losses import resolve_loss_config
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn

from tests.extraction import training
from tests.real.reference import load
from vllm_compat.extraction.formats.native import write_dataset
from vllm_compat.extraction.layers import to_vllm
from vllm_compat.extraction.samples import read_samples


@pytest.fixture
def batch(tmp_path, model):
    write_dataset(tmp_path, read_samples(training.DATA))
    training.write_states(tmp_path / "hidden_states", model("llama"), "native")
    loader = torch.utils.data.DataLoader(
        ArrowDataset(
            training.LENGTH, tmp_path, on_missing="raise", hidden_states_dtype=torch.float32
        ),
        batch_size=len(training.DATA),
        collate_fn=CollateFn(training.LENGTH, 128, preprocess=shift_batch, dtype=torch.float32),
    )
    [batch] = loader
    return batch


@pytest.fixture
def draft(model):
    torch.manual_seed(0)
    config = training.draft_config(model("llama"))
    return Eagle3DraftModel.from_training_args(
        config,
        draft_vocab_size=config.vocab_size,
        norm_before_residual=False,
        ttt_steps=3,
        verifier_name_or_path=str(model("llama")),
        target_layer_ids=to_vllm(training.LAYERS[:3]),
        draft_attn_impl="eager",  # flex attention has no gradient on a CPU
    )


def test_the_last_layer_is_what_their_verifier_head_takes(batch, draft, model):
    ids = training.DATA[0]["input_ids"]
    with torch.inference_mode():
        targets = draft.verifier_lm_head(draft.verifier_norm(batch["verifier_last_hidden_states"]))
        logits = load(model("llama"))(torch.tensor([ids])).logits
    assert batch["input_ids"][0, : len(ids) - 1].tolist() == ids[1:]
    assert torch.allclose(targets[0, : len(ids) - 1], logits[0, 1:], rtol=1e-3, atol=1e-3)


def test_the_loss_falls(batch, draft):
    assert int((batch["document_ids"] >= 0).sum()) == training.TOTAL - len(training.DATA)
    losses = training.losses(
        draft, batch, ttt_steps=3, loss_config=resolve_loss_config("kl_div", "eager")
    )
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]
