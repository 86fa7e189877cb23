"""What a machine lacks is done without, and said in one line: bf16, triton; and the compiler's time is told."""

import sys
import types

import pytest
import torch
from engine_cases import make_config

from dyart.engine import fabric as fabrics
from dyart.engine import run
from dyart.engine.fabric import make_fabric, possible_precision
from dyart.engine.run import prepare
from dyart.engine.views import wants_compile

CUDA = torch.device("cuda")


def without_bf16(monkeypatch, asked):
    def supported(including_emulation=True):
        asked.append(including_emulation)
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)


def test_a_gpu_without_bf16_computes_in_fp32(monkeypatch):
    asked = []
    without_bf16(monkeypatch, asked)
    assert possible_precision("bf16", "cuda") == ("fp32", "training in fp32: this GPU has no bf16")
    assert asked == [False]  # emulated is slower than fp32
    assert possible_precision("fp32", "cuda") == ("fp32", "")
    assert possible_precision("bf16", "cpu") == ("fp32", "training in fp32: bf16 is for GPUs")
    assert possible_precision("fp32", "cpu") == ("fp32", "")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert possible_precision("bf16", "cuda") == ("bf16", "")


@pytest.mark.parametrize("devices", [1, 2])
def test_the_line_is_printed_once_and_the_precision_is_the_possible_one(monkeypatch, capsys, devices):
    made = []

    class Fabric:
        def __init__(self, **settings):
            made.append(settings)

        def launch(self):
            pass

        def print(self, words):
            print(words)

    monkeypatch.setattr(fabrics, "Fabric", Fabric)
    monkeypatch.setattr(fabrics, "DDPStrategy", lambda **settings: types.SimpleNamespace(launcher=None))
    monkeypatch.setattr(fabrics.atexit, "register", lambda function: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    without_bf16(monkeypatch, [])
    make_fabric("cuda", "bf16", devices)
    assert made[0]["precision"] == "32-true"
    assert capsys.readouterr().out == "training in fp32: this GPU has no bf16\n"


def test_a_gpu_that_is_not_there_is_refused_by_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="device 'cuda:2', but torch can use 2 here, and counts from 0: use cuda:1"):
        make_fabric("cuda:2")


def test_torch_without_triton_trains_uncompiled(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it fails
    line = "uncompiled: torch.compile on a GPU needs the package triton"
    assert wants_compile("auto", CUDA) == (False, line)
    assert wants_compile("on", CUDA) == (False, line)
    assert wants_compile("off", CUDA) == (False, "")
    assert wants_compile("auto", torch.device("cpu")) == (False, "")
    assert wants_compile("on", torch.device("cpu")) == (True, "")
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    assert wants_compile("auto", CUDA) == (True, "")


def test_the_line_is_said_and_the_training_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(run, "wants_compile", lambda switch, device: (False, "uncompiled: no triton"))
    training = prepare(make_config(method="at", train_compile="on", train_epochs=1)).run()
    assert capsys.readouterr().out.splitlines().count("training uncompiled: no triton") == 1
    assert not training.compile
    assert training.views.folded is None
    assert not training.method.static


def test_the_compilers_time_is_told_once_a_phase(monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    settings = {"train_compile": "on", "train_epochs": 2, "train_burn_in": 2}
    training = prepare(make_config(method="dyart", **settings)).run()
    said = [line for line in capsys.readouterr().out.splitlines() if "compiled in" in line]
    assert [line.split(" in ")[0] for line in said] == ["burn-in: compiled", "train: compiled"]
    assert all("TORCHINDUCTOR_CACHE_DIR" in line for line in said)
    assert training.method.static
    prepare(make_config(method="dyart", **settings | {"train_compile": "off"})).run()
    assert "compiled" not in capsys.readouterr().out
