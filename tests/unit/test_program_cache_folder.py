"""Which folder has the compiled programs of this machine, and which flags TensorFlow gets for them."""

import importlib.metadata
import os
import pathlib
from unittest.mock import Mock

import pytest
import tensorflow as tf

from unisono.compat import xla_flags
from unisono.distribute.hardware import machine, program_cache
from unisono.distribute.hardware.program_cache import LATE, ProgramCache


def cards(folder, *models, version="NVRM version: 550.54"):
    for n, model in enumerate(models):
        (folder / "gpus" / str(n)).mkdir(parents=True)
        (folder / "gpus" / str(n) / "information").write_text(f"Model: \t {model}\nIRQ: 1{n}\n")
    (folder / "version").write_text(f"{version}\nGCC version: 12\n")
    return machine.describe_cards(str(folder))


def test_cards_are_known_by_driver_libraries_and_their_one_model(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.3")
    found = cards(tmp_path / "a", "NVIDIA H100", "NVIDIA H100")
    assert (
        found[0] == "NVRM version: 550.54" and found[-1] == "NVIDIA H100" and "nvidia-cudnn-cu12 9.3" in found
    )
    assert (
        cards(tmp_path / "b", "NVIDIA H100", "NVIDIA T4")
        == machine.describe_cards(str(tmp_path / "none"))
        == []
    )
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert cards(tmp_path / "c", "NVIDIA H100") == []


@pytest.mark.parametrize("change", ["cpu", "cards", "flags", "version", "processors", "library"])
def test_another_machine_or_other_flags_have_another_folder(tmp_path, monkeypatch, change):
    environ = {"UNISONO_CACHE": str(tmp_path)}
    before = program_cache.machine_folder(environ)
    assert before == program_cache.machine_folder(
        {**environ, "TF_XLA_FLAGS": xla_flags._FLAGS["TF_XLA_FLAGS"]}
    )
    if change == "flags":
        environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"
    elif change == "processors":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(99))
    else:
        name = {"cpu": "describe_cpu", "cards": "describe_cards", "version": "find_version"}.get(change)
        name = name or "size_of_tensorflow"
        monkeypatch.setattr(program_cache, name, lambda *_: "another")
    assert program_cache.machine_folder(environ) != before


def test_cpu_is_its_model_and_features_without_its_present_speed(tmp_path):
    lines = "model name\t: A\ncpu MHz\t\t: {}\nflags\t\t: avx {}\nbogomips\t: {}\n"
    found = []
    for n, values in enumerate([(1, "fma", 2), (3, "fma", 4), (1, "amx", 2)]):
        (tmp_path / str(n)).write_text(lines.format(*values))
        found.append(machine.describe_cpu(str(tmp_path / str(n))))
    assert found[0] == found[1] != found[2] and machine.describe_cpu(str(tmp_path / "none")) == []


def test_folder_is_below_the_cache_of_the_user(monkeypatch):
    def root(**environ):
        return program_cache.machine_folder(environ).parent

    ours = pathlib.Path.home() / ".cache/unisono"
    assert root() == root(XDG_CACHE_HOME="") == root(XDG_CACHE_HOME="not/absolute") == ours
    assert root(XDG_CACHE_HOME="/c") == pathlib.Path("/c/unisono")
    assert root(UNISONO_CACHE="/d", XDG_CACHE_HOME="/c") == pathlib.Path("/d")
    assert root(UNISONO_CACHE="~/c") == pathlib.Path.home() / "c"
    assert program_cache.machine_folder({"UNISONO_CACHE": ""}) is None
    monkeypatch.setattr(pathlib.Path, "expanduser", lambda _: (_ for _ in ()).throw(RuntimeError("no home")))
    assert program_cache.machine_folder({}) is program_cache.machine_folder({"UNISONO_CACHE": "~/c"}) is None


def test_flags_of_the_user_stay_and_ours_are_taken_back():
    environ = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=1"}
    assert xla_flags.add_flags(environ, gpus=True) == ""
    assert (
        environ["TF_XLA_FLAGS"].startswith("--tf_xla_auto_jit=1 --tf_xla_persistent")
        and "XLA_FLAGS" in environ
    )
    child = dict(environ)  # a child process of ours begins with these
    assert xla_flags.restore_flags(environ) and environ == {"TF_XLA_FLAGS": "--tf_xla_auto_jit=1"}
    assert xla_flags.add_flags(child, gpus=False) == "" and "XLA_FLAGS" not in child
    assert child["TF_XLA_FLAGS"].count("persistent_cache_directory") == 1 and child["TF_XLA_FLAGS"].endswith(
        "=CPU"
    )
    child["TF_XLA_FLAGS"] = "--tf_xla_auto_jit=2"
    assert not xla_flags.restore_flags(child) and child == {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"}
    for own in ("--tf_xla_persistent_cache_directory=/mine", "/a/file"):
        environ = {"TF_XLA_FLAGS": own}
        assert xla_flags.add_flags(environ, gpus=True).startswith("TF_XLA_FLAGS names a")
        assert environ == {"TF_XLA_FLAGS": own}


def test_import_begins_a_cache_in_the_home_of_a_user_who_sets_nothing(before_flags_are_read):
    before_flags_are_read()
    cache, environ = ProgramCache(), {"XDG_CACHE_HOME": "/c", "XLA_FLAGS": "--mine"}
    cache.begin(environ)
    assert cache.why_off == "" and cache.folder.parent == pathlib.Path("/c/unisono")
    assert "persistent_cache_directory=ram:" in environ["TF_XLA_FLAGS"] and environ["XLA_FLAGS"] == "--mine"
    cache.release_flags(environ)
    assert "TF_XLA_FLAGS" in environ  # TensorFlow has not read them yet
    cache.release_flags(environ, compiles=False)
    assert environ == {"XDG_CACHE_HOME": "/c", "XLA_FLAGS": "--mine"} and cache.why_off == ""


@pytest.mark.parametrize("environ", [{"UNISONO_CACHE": ""}, {"UNISONO_CACHE": "~unknown/x"}])
def test_without_a_folder_no_flag_is_set(before_flags_are_read, environ):
    before_flags_are_read()
    cache, before = ProgramCache(), dict(environ)
    cache.begin(environ)
    assert cache.why_off and environ == before


def test_version_that_is_not_in_the_table_gets_no_flags(monkeypatch):
    monkeypatch.setattr(tf, "__version__", "3.0.0")
    environ = {}
    assert "TensorFlow 3.0.0" in xla_flags.add_flags(environ, gpus=True) and environ == {}


def test_cache_is_off_where_devices_were_listed_before():
    cache, environ = ProgramCache(), {"UNISONO_CACHE": "/nowhere"}
    tf.config.list_logical_devices()
    cache.begin(environ)
    assert cache.why_off == LATE and environ == {"UNISONO_CACHE": "/nowhere"}
