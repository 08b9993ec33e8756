"""Each change of Keras and TensorFlow in `compat/register.py` has a program that is right with it and breaks without."""

import pytest
from changes_off import FILES, PROGRAMS, changes
from children import HELPERS

for _file in FILES:
    __import__(_file)


def test_no_program_is_for_a_change_that_is_gone():
    assert not PROGRAMS.keys() - changes().keys()


@pytest.mark.process
@pytest.mark.short(
    "layers.Layer._get_regularization_losses",
    "losses.Loss.__call__",
    "cloning._clone_sequential_model",
    "backend_nn.dot_product_attention",
)
@pytest.mark.parametrize("name", changes())
def test_program_is_right_with_a_change_and_breaks_without_it(name, forked, tmp_path):
    assert name in PROGRAMS, "write a program that breaks without it: @breaks(name, says=its error)"
    printed = {}
    for how, status in (("on", 0), ("off", 1)):
        given = {"folder": tmp_path, "out": tmp_path / how, "env": {"UNISONO_STRICT": "1"}}
        process = forked.start(HELPERS / "changes_off.py", name, how, **given)
        assert process.wait(600) == status, (how, given["out"].read_text()[-3000:])
        printed[how] = given["out"].read_text()
    assert printed["on"].endswith("right\n")
    assert PROGRAMS[name][1] in printed["off"], printed["off"][-3000:]
