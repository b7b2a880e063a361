"""Settings of one worker, from the environment and the command line alone."""

import pytest

from horde.worker.configuration import load_configuration
from horde.worker.settings import KEY_SOURCES, ProgramSettings, SettingsError, WorkerSettings

KEY = {"HORDE_WORKER_API_KEY": "secret-key"}


def load(options: dict[str, object] | None = None, **variables: str) -> WorkerSettings:
    environment = KEY | {f"HORDE_WORKER_{name}": value for name, value in variables.items()}
    (worker,) = load_configuration(options, environment=environment).workers
    return worker.settings


def problems_of(options: dict[str, object] | None = None, **variables: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(options, **variables)
    return caught.value.problems


def test_a_key_is_all_that_has_to_be_set() -> None:
    settings = load()
    assert settings.api_key.get_secret_value() == "secret-key"
    assert settings.backend_url == "http://127.0.0.1:8080/v1"


def test_the_command_line_stands_over_the_environment() -> None:
    assert load({"threads": "3", "name": None}, THREADS="2").threads == 3


def test_a_missing_key_is_said_in_one_sentence() -> None:
    with pytest.raises(SettingsError, match=r"^HORDE_WORKER_API_KEY is not set; the worker needs it\.$"):
        load_configuration(environment={})


@pytest.mark.parametrize(
    ("name", "hint"),
    [("TREADS", "did you mean HORDE_WORKER_THREADS?"), ("QQQ", "remove it or correct its name.")],
)
def test_a_misspelt_variable_is_refused_with_what_may_be_meant(name: str, hint: str) -> None:
    assert problems_of(None, **{name: "2"}) == (f"HORDE_WORKER_{name} is no setting of the worker; {hint}",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SERVICE_HOST", "10.0.0.1"),
        ("SERVICE_PORT_HTTP", "80"),
        ("PORT", "tcp://10.0.0.1:80"),
        ("PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("THREADS", ""),
    ],
)
def test_what_a_cluster_injects_is_no_mistake_and_an_empty_variable_is_none(name: str, value: str) -> None:
    assert load(None, **{name: value}).threads is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("THREADS", "0"),
        ("HORDE_URL", "ftp://x"),
        ("WAIT_SECONDS", "26"),
        ("LOG_LEVEL", "LOUD"),
        ("MAX_LENGTH", "8"),
        ("SCHEDULE", "nights"),
        ("TIME_ZONE", "Berlin"),
    ],
)
def test_a_wrong_value_names_its_variable_and_not_the_value(name: str, value: str) -> None:
    (problem,) = problems_of(None, **{name: value})
    assert problem.startswith(f"HORDE_WORKER_{name} is wrong: ")
    assert value not in problem.replace(name, "").split("is wrong")[0]


def test_a_name_to_withhold_that_is_none_is_refused_with_those_there_are() -> None:
    (problem,) = problems_of(EXCLUDE="seed,sed")
    assert problem.startswith("HORDE_WORKER_EXCLUDE is wrong: sed is none of ")
    assert "seed" in problem


def test_every_problem_is_said_at_once_by_where_it_was_given() -> None:
    assert [problem.split(" is ")[0] for problem in problems_of({"max_length": "8"}, THREADS="0", TREADS="1")] == [
        "HORDE_WORKER_TREADS",
        "HORDE_WORKER_THREADS",
        "--max-length",
    ]


def test_the_key_is_never_shown() -> None:
    assert "secret-key" not in repr(load_configuration(environment=KEY))
    assert "secret-key" not in "".join(problems_of({"horde_url": "secret-key"}))


def test_lists_are_separated_by_commas_and_schedules_by_semicolons() -> None:
    settings = load(EXCLUDE="seed, json_schema,", SCHEDULE="sat,sun 00:00-24:00; 22:00-07:00")
    assert settings.exclude == ("seed", "json_schema")
    assert settings.schedule == ("sat,sun 00:00-24:00", "22:00-07:00")


def test_a_worker_without_a_name_gets_one_that_stays_and_tells_nothing() -> None:
    settings = load()
    name = settings.worker_name("model-1B")
    assert name == load().worker_name("model-1B")
    assert name.startswith("model-1B ")
    assert "secret" not in name
    assert name != load({"api_key": "other"}).worker_name("model-1B")
    assert name != settings.worker_name("model-1B", "second")
    assert load({"name": "mine"}).worker_name("model-1B") == "mine"


def test_every_setting_says_what_it_is_for() -> None:
    fields = ProgramSettings.model_fields | WorkerSettings.model_fields
    assert all([*(field.description for field in fields.values()), *KEY_SOURCES.values()])
