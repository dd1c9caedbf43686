"""Secrets stay in the log; everything else stays readable."""

from __future__ import annotations

import pytest
from diagnose.reading.reading_logs import digest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.reading.masking import without_secrets

FAKE = "Zq3vR8tLw1XyB6nK0pJd"  # Nobody's: it stands where a secret would.


@pytest.mark.parametrize(
    "text",
    [
        f"login with hf_{FAKE}abcd failed",
        f"using token ghp_{FAKE}{FAKE}",
        f"github_pat_{FAKE}_{FAKE}",
        f"openai.AuthenticationError: Incorrect API key provided: sk-{FAKE}{FAKE}",
        f"AWS_SECRET_ACCESS_KEY={FAKE}{FAKE}",
        f"'aws_secret_access_key': '{FAKE}/{FAKE}'",
        f"WANDB_API_KEY={FAKE}{FAKE}",
        f"Authorization: Bearer {FAKE}",
        f"postgresql://trainer:{FAKE}@db.example.com:5432/runs",
        f"https://{FAKE}@github.com/example/project.git",
        f"MASTER_PASSWORD: {FAKE}",
        f'{{"password": "{FAKE}"}}',
        f"python train.py --api-key {FAKE} --steps 3",
        f"https://bucket.s3.amazonaws.com/x?X-Amz-Signature={FAKE}{FAKE}&X-Amz-Date=20261116",
        f"DefaultEndpointsProtocol=https;AccountKey={FAKE}==",
        f"https://hooks.slack.com/services/T000/B000/{FAKE}",
        f"xoxb-123456789012-{FAKE}",
        f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{FAKE}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{FAKE}{FAKE}\n{FAKE}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{FAKE}{FAKE}",
        f"HF_TOKEN={FAKE}",
    ],
)
def test_a_secret_is_masked(text: str) -> None:
    shown = without_secrets(text)
    assert FAKE not in shown
    assert "<secret>" in shown


def test_an_access_key_of_aws_is_masked() -> None:
    assert without_secrets("key AKIAIOSFODNN7EXAMPLE used") == "key <secret> used"


def test_what_is_beside_a_secret_stays() -> None:
    assert without_secrets(f"postgresql://trainer:{FAKE}@db.example.com/runs") == "postgresql://trainer:<secret>@db.example.com/runs"
    assert without_secrets(f"connect(host=db, password={FAKE}, port=3)") == "connect(host=db, password=<secret>, port=3)"


@pytest.mark.parametrize(
    "text",
    [
        "/checkpoints/3f2a9c1d8b7e6f5a4c3b2d1e0f9a8b7c6d5e4f3a/model.pt",
        "commit 3f2a9c1d8b7e6f5a4c3b2d1e0f9a8b7c6d5e4f3a",
        "tensor([[0.1234, -5.6e-05], [nan, inf]], device='cuda:0', dtype=torch.float16)",
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
        "pad_token: <pad>, eos_token: </s>, bos_token_id=1, max_tokens=4096, tokens/s: 12345.6",
        "mail ann@example.com if it fails",
        "size mismatch for key: copying a param with shape torch.Size([10, 4])",
        "Missing key(s) in state_dict: \"fc.weight\", \"fc.bias\".",
        "password: None",
        "Invalid token: unexpected character at line 3",
        "https://example.com/path?step=12&token_count=3",
        "RuntimeError: CUDA error: out of memory",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "GPU-8f6d5e4c-1a2b-3c4d-5e6f-7a8b9c0d1e2f",
        "secret ingredients are listed below",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


@given(text=st.text(max_size=300))
def test_masking_twice_is_masking_once(text: str) -> None:
    once = without_secrets(text)
    assert without_secrets(once) == once


def test_no_secret_leaves_the_room() -> None:
    lines = [f"step 1 loss 2 token=hf_{FAKE}", f"ValueError: bad key sk-{FAKE}{FAKE}", f"ERROR WANDB_API_KEY={FAKE} refused", f"last words, password={FAKE}"]
    assert FAKE not in repr(digest("\n".join(lines)))
