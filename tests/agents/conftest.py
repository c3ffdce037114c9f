import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

from server_process import Server, family_file  # noqa: E402


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    os.environ["OPENAI_API_KEY"] = "none"
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing from outside
    # What one role has read must still be there for the last one.
    running = Server(family_file(tmp_path_factory.mktemp("family")), cache_memory="512MiB")
    os.environ["OPENAI_BASE_URL"] = running.url + "/v1"
    yield running
    assert running.terminate() == 0


@pytest.fixture(scope="session")
def models(server):
    import openai
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none").models.list().data


@pytest.fixture(scope="session")
def model(models):
    return next(entry.id for entry in models if entry.parent is None)


@pytest.fixture(scope="session")
def variant(models):
    return next(entry.id for entry in models if entry.parent is not None)
