"""Several workers: from a file, from the environment, and what stands over what."""

from pathlib import Path

import pytest

from horde.worker.configuration import Configuration, load_configuration
from horde.worker.settings import SettingsError

TWO = """
horde_url = "https://horde.example"
api_key_env = "MY_KEY"
threads = 2

[workers.big]
backend_url = "http://127.0.0.1:8080/v1"
model = "big.gguf"
threads = 4
exclude = ["seed"]

[workers.small-one]
backend_url = "http://127.0.0.1:11434/v1"
schedule = ["mon-fri 22:00-07:00", "sat,sun 00:00-24:00"]
time_zone = "Europe/Berlin"
"""
ENVIRONMENT = {"MY_KEY": "a-secret"}


def read(folder: Path, text: str = TWO, options: dict[str, object] | None = None, **variables: str) -> Configuration:
    path = folder / "worker.toml"
    path.write_text(text)
    path.chmod(0o600)
    return load_configuration(options, config=path, environment=ENVIRONMENT | variables)


def problems_of(folder: Path, text: str, options: dict[str, object] | None = None, **variables: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(folder, text, options, **variables)
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def threads_of(configuration: Configuration) -> dict[str, int | None]:
    return {worker.label: worker.settings.threads for worker in configuration.workers}


def test_each_table_is_a_worker_and_what_stands_above_them_is_for_all(tmp_path: Path) -> None:
    big, small = read(tmp_path).workers
    assert (big.label, big.settings.threads, big.settings.model, big.settings.exclude) == (
        "big",
        4,
        "big.gguf",
        ("seed",),
    )
    assert (small.label, small.settings.threads, small.settings.model) == ("small-one", 2, None)
    for worker in (big, small):
        assert worker.settings.horde_url == "https://horde.example"
        assert worker.settings.api_key.get_secret_value() == "a-secret"
    assert big.settings.worker_name("m", big.label) != small.settings.worker_name("m", small.label)


def test_a_variable_stands_over_the_file_and_an_option_over_both(tmp_path: Path) -> None:
    assert threads_of(read(tmp_path)) == {"big": 4, "small-one": 2}
    assert threads_of(read(tmp_path, HORDE_WORKER_THREADS="8")) == {"big": 8, "small-one": 8}
    one = {"HORDE_WORKER_WORKERS__SMALL_ONE__THREADS": "6"}
    assert threads_of(read(tmp_path, TWO, None, **one)) == {"big": 4, "small-one": 6}
    assert threads_of(read(tmp_path, TWO, None, HORDE_WORKER_THREADS="8", **one)) == {"big": 8, "small-one": 6}
    assert threads_of(read(tmp_path, TWO, {"threads": "1"}, **one)) == {"big": 1, "small-one": 1}


def test_variables_alone_make_several_workers() -> None:
    configuration = load_configuration(
        environment={
            "HORDE_WORKER_API_KEY": "k",
            "HORDE_WORKER_WORKERS__A__BACKEND_URL": "http://127.0.0.1:1/v1",
            "HORDE_WORKER_WORKERS__B__BACKEND_URL": "http://127.0.0.1:2/v1",
        }
    )
    assert [worker.settings.backend_url[-4:] for worker in configuration.workers] == ["1/v1", "2/v1"]


def test_a_file_may_be_named_by_a_variable_and_be_for_one_worker(tmp_path: Path) -> None:
    path = tmp_path / "worker.toml"
    path.write_text('api_key_env = "MY_KEY"\nmodel = "m"\nlog_level = "DEBUG"\n')
    configuration = load_configuration(environment=ENVIRONMENT | {"HORDE_WORKER_CONFIG": str(path)})
    assert [(worker.label, worker.settings.model) for worker in configuration.workers] == [("", "m")]
    assert configuration.program.log_level == "DEBUG"


def test_every_problem_of_a_file_is_said_at_once_with_table_and_key(tmp_path: Path) -> None:
    text = """
treads = 3
threads = 2.5
log_level = "LOUD"
[workers.big]
api_key = "a-secret"
max_length = true
schedul = "22:00-07:00"
log_format = "json"
time_zone = "Europe/Berlim"
[workers.Small]
api_key_env = "NOT_SET"
backend_url = "http://127.0.0.1:1/v1"
exclude = [1]
"""
    assert problems_of(tmp_path, text) == [
        "worker.toml: treads is no setting; did you mean threads?",
        "worker.toml: threads is wrong: a whole number is expected.",
        "worker.toml: [workers.big] max_length is wrong: a whole number is expected.",
        "worker.toml: [workers.big] schedul is no setting; did you mean schedule?",
        "worker.toml: [workers.big] log_format is a setting of the program: it belongs above the first table.",
        "worker.toml: [workers.Small] is wrong: a label has up to 32 small letters, digits and hyphens.",
        "worker.toml: [workers.Small] exclude is wrong: a list of texts is expected.",
        "worker.toml: [workers.big] backend_url is not set; beside other workers it has to be.",
        (
            "worker.toml: [workers.big] time_zone is wrong: a time zone's name such as Europe/Berlin is expected, "
            "from the machine's tzdata."
        ),
        "worker.toml: [workers.Small] api_key_env names a variable NOT_SET that is not set.",
        (
            "worker.toml: log_level is wrong: Input should be 'TRACE', 'DEBUG', 'INFO', 'SUCCESS', 'WARNING', 'ERROR' "
            "or 'CRITICAL'."
        ),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("threads = ", "worker.toml cannot be read as TOML: Invalid value (at end of document)."),
        ("workers = 3", "worker.toml: workers is wrong: a table for each worker is expected, [workers.LABEL]."),
        ("[[workers]]", "worker.toml: workers is wrong: a table for each worker is expected, [workers.LABEL]."),
        ("a = " + "[" * 5000, "worker.toml cannot be read as TOML: it is nested too deeply."),
    ],
)
def test_a_file_that_is_none_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    assert problems_of(tmp_path, text, HORDE_WORKER_API_KEY="k") == [problem]


def test_a_file_that_is_not_there_or_no_text_is_one_sentence(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path, reason in ((tmp_path / "none.toml", "No such file or directory"), (binary, "it is not UTF-8")):
        with pytest.raises(SettingsError) as caught:
            load_configuration(config=path, environment={"HORDE_WORKER_API_KEY": "k"})
        assert caught.value.problems == (f"{path} cannot be read: {reason}.",)


def test_what_names_one_worker_cannot_be_said_for_several(tmp_path: Path) -> None:
    assert problems_of(tmp_path, TWO, {"model": "m"}, HORDE_WORKER_NAME="n")[:2] == [
        "--model is meant for one worker, and there are several: set it for one of them.",
        "HORDE_WORKER_NAME is meant for one worker, and there are several: set it for one of them.",
    ]


def test_a_variable_for_a_worker_that_the_file_does_not_have_is_a_problem(tmp_path: Path) -> None:
    assert problems_of(tmp_path, TWO, HORDE_WORKER_WORKERS__BIGG__THREADS="1") == [
        "HORDE_WORKER_WORKERS__BIGG__THREADS is for a worker that worker.toml does not have; it has big, small-one."
    ]


def test_two_workers_of_one_name_are_a_problem(tmp_path: Path) -> None:
    text = TWO.replace('model = "big.gguf"', 'name = "n"').replace("[workers.small-one]", '[workers.small]\nname = "n"')
    assert problems_of(tmp_path, text) == [
        "worker.toml: [workers.small] name is also that of big: on a Horde a worker's name serves one model."
    ]


def test_two_workers_of_one_model_are_warned_of(tmp_path: Path) -> None:
    text = TWO.replace('model = "big.gguf"\n', "").replace("11434", "8080")
    assert read(tmp_path, text).warnings == (
        "big and small-one serve one model of one server: give each a part of its slots as threads",
    )


def test_a_key_in_a_file_of_its_own_is_read_from_beside_the_configuration(tmp_path: Path) -> None:
    key = tmp_path / "horde.key"
    key.write_text("from-a-file\n")
    key.chmod(0o600)
    configuration = read(tmp_path, 'api_key_file = "horde.key"')
    assert configuration.workers[0].settings.api_key.get_secret_value() == "from-a-file"
    assert configuration.warnings == ()
    key.chmod(0o644)
    assert read(tmp_path, 'api_key_file = "horde.key"').warnings == (
        f"{key} holds a key and other users of this machine can read it: chmod 600 {key}",
    )


def test_a_key_in_a_configuration_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "worker.toml"
    path.write_text('api_key = "a-secret"')
    path.chmod(0o640)
    configuration = load_configuration(config=path, environment={})
    assert configuration.warnings == (
        (
            f"{path}: api_key is a key that other users of this machine can read: chmod 600 {path}, "
            "or use api_key_file or api_key_env"
        ),
    )
    path.chmod(0o600)
    assert load_configuration(config=path, environment={}).warnings == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('api_key_file = "none"', "api_key_file names a file that cannot be read: No such file or directory."),
        ('api_key_file = "empty"', "api_key_file names a file that is empty."),
        ('api_key_env = "sk-123"', "api_key_env names a variable that is not set."),
        (
            'api_key_env = "MY_KEY"\napi_key_file = "empty"',
            "api_key_file and worker.toml: api_key_env say the same; keep one.",
        ),
    ],
)
def test_a_key_that_cannot_be_had_is_a_problem_and_never_shown(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "empty").touch()
    assert problems_of(tmp_path, text)[0] == f"worker.toml: {problem}"


def test_a_key_from_a_source_above_replaces_one_of_another_kind_below(tmp_path: Path) -> None:
    configuration = read(tmp_path, HORDE_WORKER_API_KEY="given")
    assert {worker.settings.api_key.get_secret_value() for worker in configuration.workers} == {"given"}
