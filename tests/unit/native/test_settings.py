import pytest

from horde.native.settings import NativeSettings, SettingsError, load_settings

_DATABASE = {"HORDE_NATIVE_DATABASE_URL": "postgresql://user:secret@host/db"}


def test_settings_are_read_from_the_environment_and_have_defaults() -> None:
    settings = load_settings({**_DATABASE, "HORDE_NATIVE_PORT": "9", "PATH": "/bin"})
    assert settings.port == 9
    assert settings.lease_seconds == 30.0
    assert settings.database_url.get_secret_value() == _DATABASE["HORDE_NATIVE_DATABASE_URL"]


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({}, "HORDE_NATIVE_DATABASE_URL has to be set."),
        ({**_DATABASE, "HORDE_NATIVE_PROT": "1"}, "HORDE_NATIVE_PROT is not a setting of the Horde"),
        ({**_DATABASE, "HORDE_NATIVE_PORT": "x"}, "HORDE_NATIVE_PORT is wrong"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as wrong:
        load_settings(variables)
    assert "secret" not in str(wrong.value)


def test_variables_that_a_cluster_injects_are_no_settings() -> None:
    injected = {"HORDE_NATIVE_SERVICE_HOST": "10.0.0.1", "HORDE_NATIVE_PORT": "tcp://10.0.0.1:80"}
    assert load_settings({**_DATABASE, **injected, "HORDE_NATIVE_PORT_80_TCP": "x"}).port == 8001


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(load_settings(_DATABASE))


@pytest.mark.parametrize("name", list(NativeSettings.model_fields))
def test_every_setting_is_described(name: str) -> None:
    assert (NativeSettings.model_fields[name].description or "").endswith(".")
