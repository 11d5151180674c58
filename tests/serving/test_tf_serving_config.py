"""models.config, parsed with TensorFlow Serving's own messages."""

import pytest
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from serving.tf_serving.__main__ import main


def test_models_config_lists_every_model(grid_models, capsys):
    assert main(["--models-dir", str(grid_models), "--mounted-at", "/models/"]) == 0
    text = (grid_models / "models.config").read_text()
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
    assert [c.name for c in config] == [f"SA10{k}" for k in range(1, 9)]
    assert config[0].base_path == "/models/SA101" and config[0].model_platform == "tensorflow"
    (grid_models / "models.config").unlink()


def test_a_folder_without_models_is_refused(tmp_path, capsys):
    assert main(["--models-dir", str(tmp_path)]) == 2
    assert "holds no models" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models", "x"], "unrecognized arguments: --models x"),
        (["--mounted", "/x"], "unrecognized arguments: --mounted /x"),
        (["--models-dir"], "expected one argument"),
    ],
)
def test_wrong_flags_give_one_error_line_and_exit_code_2(flags, message, capsys):
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and len(error.splitlines()) == 1
