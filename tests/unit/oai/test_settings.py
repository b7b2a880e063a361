"""Settings: variables, defaults, refusals at start (rules SET)."""

import pytest

from horde.oai.settings import FrontSettings, SettingsError, load_settings


@pytest.mark.rule("SET-1", "SET-2", "SET-3", "SET-4", "SET-5", "SET-6")
def test_settings_are_read_from_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "REDIS_URL": "redis://127.0.0.1:1",
        "STREAM_REDIS_DB": "3",
        "MAX_INFLIGHT_PER_SOURCE": "7",
        "CANCEL_TIMEOUT_SECONDS": "2.5",
        "CANCEL_RETRY_SECONDS": "9",
        "HORDE_URLS": "http://one/api/, http://two/api",
        "TRUSTED_PROXIES": "10.0.0.0/8,::1",
        "PACE_STREAMS": "false",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"HORDE_OAI_{name}", value)
    settings = load_settings()
    assert settings.redis_url == "redis://127.0.0.1:1"
    assert (settings.stream_redis_db, settings.max_inflight_per_source) == (3, 7)
    assert (settings.cancel_timeout_seconds, settings.cancel_retry_seconds) == (2.5, 9)
    assert settings.horde_urls == ("http://one/api", "http://two/api")
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1")
    assert settings.pace_streams is False


@pytest.mark.rule("SET-7", "SET-8", "SET-9", "SET-10", "SET-11", "SET-12")
def test_the_defaults_are_the_documented_ones() -> None:
    settings = FrontSettings()
    assert settings.fail_fast_grace_seconds == 15
    assert settings.signal_recheck_seconds == 1
    assert settings.nonstream_timeout_seconds == 540
    assert settings.stream_timeout_seconds == 1140
    assert settings.keepalive_seconds == 5
    assert (settings.max_inflight, settings.max_inflight_per_source) == (4096, 64)
    assert (settings.max_body_bytes, settings.max_body_bytes_reading) == (16 * 2**20, 256 * 2**20)
    assert (settings.body_read_timeout_seconds, settings.call_slots, settings.poll_seconds) == (15, 256, 2)
    assert (settings.drain_accept_seconds, settings.drain_seconds, settings.model_cache_seconds) == (3, 20, 5)


def test_an_unknown_variable_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORDE_OAI_MAX_INFLIHGT", "1")
    with pytest.raises(SettingsError, match="HORDE_OAI_MAX_INFLIHGT is not a setting"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HORDE_OAI_SERVICE_HOST", "10.0.0.1"),
        ("HORDE_OAI_SERVICE_PORT", "8000"),
        ("HORDE_OAI_SERVICE_PORT_HTTP", "8000"),
        ("HORDE_OAI_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("HORDE_OAI_X_PORT", "tcp://10.0.0.1:8000"),
    ],
)
def test_what_a_cluster_injects_for_a_service_of_that_name_is_ignored(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert load_settings().port == 8000


def test_the_port_a_cluster_injects_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORDE_OAI_PORT", "tcp://10.0.0.1:8000")
    assert load_settings().port == 8000


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "70000"), ("HORDE_URLS", "ftp://x"), ("TRUSTED_PROXIES", "not-a-network"), ("POLL_SECONDS", "0")],
)
def test_a_wrong_value_is_one_sentence_with_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"HORDE_OAI_{name}", value)
    with pytest.raises(SettingsError, match=f"^HORDE_OAI_{name}: [^\n]+$"):
        load_settings()
