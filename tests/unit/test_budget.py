"""The project does not grow, nor change more of Keras and TensorFlow: tests/budget.toml has the limits."""

import tomllib

import budget

LIMITS = tomllib.loads(budget.FILE.read_text())
WHAT_TO_DO = "; remove something, or raise the limit in tests/budget.toml in a commit that explains why"


def above(limits, values, tolerance=0.0):
    over = {name: n for name, n in values.items() if n > limits[name] * (1 + tolerance)}
    return [f"{name}: {n} is above the limit of {limits[name]}" for name, n in over.items()]


def test_lines_and_tokens_are_within_the_limits():
    for kind, values in budget.sizes().items():
        over = above(LIMITS[kind], values, tolerance=0.02)
        assert not over, f"{kind} of {', '.join(over)}{WHAT_TO_DO}"


def test_changed_attributes_of_keras_and_tensorflow_are_within_the_limits():
    names = budget.changed_attributes()
    over = above(LIMITS["changed_attributes"], {when: len(each) for when, each in names.items()})
    assert not over, f"changed attributes of Keras and TensorFlow: {', '.join(over)}{WHAT_TO_DO}\n{names}"
    assert names["import"] and len(names["trace"]) > len(names["fit"]), "changes are no longer detected"


def test_lines_of_tests_have_no_limit():
    assert set(LIMITS["lines"]) == set(budget.sizes()["lines"]) == set(budget.PACKAGES)


def test_sizes_above_a_limit_are_named():
    assert above({"a": 2, "b": 2}, {"a": 2, "b": 3}) == ["b: 3 is above the limit of 2"]
    assert above({"a": 100}, {"a": 102}, 0.02) == []
    assert above({"a": 100}, {"a": 103}, 0.02) == ["a: 103 is above the limit of 100"]


def test_tokens_are_code_alone():
    source = '"""Doc."""\n\nx = 1  # one\n\ndef f():\n    """Doc."""\n    return f"{x} {x:>{x}}" + "a"\n'
    assert budget.code_tokens(source) == 3 + 5 + 4, "x = 1, def f():, return STRING + STRING"


def test_files_of_a_package_are_those_of_its_folder():
    found = {path.relative_to(budget.ROOT) for path in budget.python_files("optimizers")}
    assert found == {p.relative_to(budget.ROOT) for p in (budget.ROOT / "optimizers").rglob("*.py")}
