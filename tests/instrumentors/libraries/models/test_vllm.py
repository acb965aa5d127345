"""vLLM in the process of the user's code, in a process of its own: it is installed beside other versions of many libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.instrumentors.libraries.tiny_models import WORDS, tokenizer

FOLDER = Path(__file__).parents[4] / ".venv" / "vllm"
pytestmark = pytest.mark.soak
PROGRAM = """
import json, sys
import stagelens
from stagelens.instrumentors import recorder
stagelens.instrument()
recorder.background.wake_at = sys.maxsize
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], enforce_eager=True, dtype="float32", max_model_len=64, disable_log_stats=False)
params = SamplingParams(max_tokens=4, ignore_eos=True)
texts = [llm.generate(prompts, params, use_tqdm=False)[0].outputs[0].text for prompts in ("word1 word2", ["word1", "word2"])]
llm.chat([{"role": "user", "content": "word1"}], params, use_tqdm=False)
embedding = LLM(sys.argv[1], enforce_eager=True, dtype="float32", max_model_len=64, runner="pooling")
embedding.embed(["word1 word2", "word1"], use_tqdm=False)
print(json.dumps([[name, marks[6:]] for marks, _, _, name, *_ in recorder.pending], default=str))
"""


def test_a_script_has_the_stages_that_vllm_reports(tmp_path: Path) -> None:
    if not FOLDER.is_dir():
        pytest.skip("make vllm: vllm is not installed")
    # Its attention knows no smaller heads.
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=256, **sizes)).save_pretrained(
        tmp_path / "tiny"
    )
    tokenizer().save_pretrained(tmp_path / "tiny")
    settings = {
        "PYTHONPATH": str(FOLDER),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "tiny")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | settings,
    )
    assert done.returncode == 0, done.stderr
    assert "stagelens:" not in done.stderr

    requests = json.loads(done.stdout.splitlines()[-1])
    stages = [[key for key in marks[::3] if key[0] != "@"] for _, marks in requests]
    facts = [
        {key: value for key, value in zip(marks[::3], marks[1::3], strict=True) if key[0] == "@"}
        for _, marks in requests
    ]
    assert [name for name, _ in requests] == ["tiny"] * 4
    reported = ["queue", "prefill", "decode", "forward"]
    assert [[stage for stage in each if stage != "tokenize"] for each in stages[:3]] == [
        reported,
        ["forward"],
        reported,
    ]
    # Threads of its own read the prompts, which wait for them.
    assert set(stages[3]) - {"tokenize"} == {"queue", "forward"}
    assert [(fact["@model"], fact["@tokens_in"], fact.get("@tokens_out")) for fact in facts] == [
        ("tiny", 2, 4),
        ("tiny", 2, 8),
        ("tiny", 1, 4),
        ("tiny", 3, None),
    ]
    assert facts[1]["@batch"] == 2
    assert "@first_token" in facts[0]
    assert "@per_token" in facts[0]
