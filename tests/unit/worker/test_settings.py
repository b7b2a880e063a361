import pytest

from horde.worker.settings import SettingsError, WorkerSettings, load_settings


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORDE_WORKER_API_KEY", "secret-key")


def test_a_key_is_all_that_has_to_be_set() -> None:
    settings = load_settings()
    assert settings.api_key.get_secret_value() == "secret-key"
    assert settings.backend_url == "http://127.0.0.1:8080/v1"


def test_the_command_line_stands_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORDE_WORKER_THREADS", "2")
    assert load_settings({"threads": 3, "name": None}).threads == 3


def test_a_missing_key_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORDE_WORKER_API_KEY")
    with pytest.raises(SettingsError, match=r"^HORDE_WORKER_API_KEY is not set; the worker needs it\.$"):
        load_settings()


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORDE_WORKER_TREADS", "2")
    with pytest.raises(SettingsError, match="HORDE_WORKER_TREADS is no setting"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HORDE_WORKER_SERVICE_HOST", "10.0.0.1"),
        ("HORDE_WORKER_SERVICE_PORT_HTTP", "80"),
        ("HORDE_WORKER_PORT", "tcp://10.0.0.1:80"),
        ("HORDE_WORKER_PORT_80_TCP", "tcp://10.0.0.1:80"),
    ],
)
def test_what_a_cluster_injects_is_no_mistake(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [("THREADS", "0"), ("HORDE_URL", "ftp://x"), ("WAIT_SECONDS", "26"), ("LOG_LEVEL", "LOUD"), ("MAX_LENGTH", "8")],
)
def test_a_wrong_value_names_its_variable_and_not_the_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"HORDE_WORKER_{name}", value)
    with pytest.raises(SettingsError, match=f"^HORDE_WORKER_{name} is wrong") as caught:
        load_settings()
    assert value not in str(caught.value).replace(name, "").split("is wrong")[0]


def test_the_key_is_never_shown() -> None:
    assert "secret-key" not in repr(load_settings())


def test_a_list_is_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORDE_WORKER_EXCLUDE", "seed, json_schema,")
    assert load_settings().exclude == ("seed", "json_schema")


def test_a_worker_without_a_name_gets_one_that_stays_and_tells_nothing() -> None:
    settings = load_settings()
    name = settings.worker_name("model-1B")
    assert name == load_settings().worker_name("model-1B")
    assert name.startswith("model-1B ")
    assert "secret" not in name
    assert name != load_settings({"api_key": "other"}).worker_name("model-1B")
    assert load_settings({"name": "mine"}).worker_name("model-1B") == "mine"


def test_every_setting_says_what_it_is_for() -> None:
    assert all(field.description for field in WorkerSettings.model_fields.values())
