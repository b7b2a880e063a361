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
        ({**_DATABASE, "HORDE_NATIVE_IMAGE_STORE": "gs://pictures"}, "HORDE_NATIVE_IMAGE_STORE is wrong: .* s3://"),
        ({**_DATABASE, "HORDE_NATIVE_IMAGE_NETWORKS": "10.0.0.0/8, lan"}, "HORDE_NATIVE_IMAGE_NETWORKS is wrong"),
        ({**_DATABASE, "HORDE_NATIVE_IMAGE_NETWORKS": "10.0.0.1/8"}, "HORDE_NATIVE_IMAGE_NETWORKS is wrong"),
        ({**_DATABASE, "HORDE_NATIVE_PUBLIC_URL": "horde.example"}, "HORDE_NATIVE_PUBLIC_URL is wrong: .* http://"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as wrong:
        load_settings(variables)
    assert "secret" not in str(wrong.value)


def test_variables_that_a_cluster_injects_are_no_settings() -> None:
    injected = {"HORDE_NATIVE_SERVICE_HOST": "10.0.0.1", "HORDE_NATIVE_PORT": "tcp://10.0.0.1:80"}
    assert load_settings({**_DATABASE, **injected, "HORDE_NATIVE_PORT_80_TCP": "x"}).port == 8001


def test_networks_of_images_are_a_list_and_the_public_address_has_no_slash_at_its_end() -> None:
    own = {"HORDE_NATIVE_IMAGE_NETWORKS": "10.1.0.0/16, fd00::/8,192.0.2.7"}
    settings = load_settings({**_DATABASE, **own, "HORDE_NATIVE_PUBLIC_URL": "https://horde.example/"})
    assert [str(network) for network in settings.image_networks] == ["10.1.0.0/16", "fd00::/8", "192.0.2.7/32"]
    assert settings.public_url == "https://horde.example"
    assert load_settings(_DATABASE).image_networks == ()


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(load_settings(_DATABASE))


@pytest.mark.parametrize("name", list(NativeSettings.model_fields))
def test_every_setting_is_described(name: str) -> None:
    assert (NativeSettings.model_fields[name].description or "").endswith(".")
