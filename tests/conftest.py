"""What every test stands on: a home of its own, a clean environment, and, once for all, a real engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# before any import of transformers: it remarks on the absence of torch, and looks for a hub
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

MODEL = "smollm2-135m-instruct"
ENGINE = "smollm2-135m-instruct-int8_wo"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's own home of trtb."""
    monkeypatch.setenv("TRTB_HOME", str(tmp_path_factory.getbasetemp() / "empty-home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "110")


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TRTB_HOME with the model fetched and its default engine built.

    TRTB_TEST_HOME names a folder that is kept between test runs.
    """
    from trtb.build import checkpoint
    from trtb.build.config import make_config
    from trtb.build.pipeline import build_engine
    from trtb.model_repo.render import render_into_engine

    kept = os.environ.get("TRTB_TEST_HOME")
    home = Path(kept) if kept else tmp_path_factory.mktemp("home")
    checkpoint.fetch(MODEL, home)
    build_engine(MODEL, make_config(), home, deploy=render_into_engine)
    return home
