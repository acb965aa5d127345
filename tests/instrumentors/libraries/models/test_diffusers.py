"""Diffusers: a pipeline of the library and one of the user's own, with models of random weights."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.diffusers import DiffusersInstrumentor
from stagelens.instrumentors.libraries.torch import TorchInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting
from tests.instrumentors.libraries.models.beside import beside

if TYPE_CHECKING:
    from conftest import Finished

pytestmark = pytest.mark.stacks


@pytest.fixture(scope="module")
def diffusers() -> Any:
    library = beside("models", "diffusers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It imports its modules when they are first used.
        assert library.UNet2DModel
        assert library.DDPMPipeline
    return library


@pytest.fixture(autouse=True)
def instrumented(diffusers: Any) -> Generator[None]:  # noqa: ARG001 - imported before
    with instrumenting(DiffusersInstrumentor(), TorchInstrumentor()):
        yield


def unet(diffusers: Any) -> Any:
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (32,)}
    return diffusers.UNet2DModel(sample_size=8, layers_per_block=1, add_attention=False, **blocks)


def ddpm(diffusers: Any) -> Any:
    pipeline = diffusers.DDPMPipeline(unet(diffusers), diffusers.DDPMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_a_pipeline_is_one_forward(diffusers: Any, finished: Finished) -> None:
    pipeline = ddpm(diffusers)
    with request("generate"):
        before = pipeline(num_inference_steps=2, generator=torch.manual_seed(0), output_type="np").images
    assert set(finished.stages()) == {"load", "forward"}
    finished.clear()

    with request("generate"):
        inside = pipeline(num_inference_steps=2, generator=torch.manual_seed(0), output_type="np").images
    assert set(finished.stages()) == {"forward"}
    assert finished.facts()["@model"] == "DDPMPipeline"
    assert (before == inside).all()


def test_processors_of_a_pipeline_of_your_own_are_stages(diffusers: Any, finished: Finished) -> None:
    class Own(diffusers.DiffusionPipeline):
        def __init__(self, unet: Any) -> None:
            super().__init__()
            self.register_modules(unet=unet)
            self.processor = import_module("diffusers.image_processor").VaeImageProcessor(vae_scale_factor=1)

        def __call__(self, prompt: list[str], image: Any) -> Any:
            assert prompt
            return self.processor.postprocess(self.unet(self.processor.preprocess(image), 1).sample.detach())

    own = Own(unet(diffusers))
    image = torch.zeros(1, 3, 64, 64)
    own(["cat"], image)
    with request("generate"):
        own(["cat", "dog"], image)

    assert finished.stages() == ["preprocess", "forward", "postprocess", "forward"]
    assert finished.facts()["@model"] == "Own"
    assert finished.facts()["@batch"] == 2


def test_a_script_counts_pipelines(diffusers: Any, script: Finished) -> None:
    pipeline = ddpm(diffusers)
    pipeline(num_inference_steps=3, output_type="np")

    assert [record[3] for record in script] == ["DDPMPipeline"]


def test_a_pipeline_is_loaded_and_named_like_its_folder(diffusers: Any, finished: Finished, tmp_path: Path) -> None:
    ddpm(diffusers).save_pretrained(tmp_path / "cats")
    with request("load"):
        pipeline = diffusers.DiffusionPipeline.from_pretrained(tmp_path / "cats")
    assert set(finished.stages()) == {"load"}
    finished.clear()

    pipeline.set_progress_bar_config(disable=True)
    with request("generate"):
        pipeline(num_inference_steps=1, output_type="np")
    assert finished.facts()["@model"] == "cats"
