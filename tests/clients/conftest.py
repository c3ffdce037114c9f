import openai
import pytest

from server_process import Server, adapter_root, family_file


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    return family_file(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="session")
def server(family, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    running = Server(family, "--log-requests", "--adapter-root", adapter_root(family), log=log)
    yield running
    assert running.terminate() == 0


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def model(client):
    """The base model's name."""
    return next(entry.id for entry in client.models.list().data if entry.parent is None)


@pytest.fixture(scope="session")
def variant(client):
    """Some adapter's name."""
    return next(entry.id for entry in client.models.list().data if entry.parent is not None)
