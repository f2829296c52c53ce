"""YAML files that are no plain values: each is refused with its line, and none is expanded without end."""

import pytest

from qualify.errors import UsageError
from qualify.yamlsource import Source

NINEFOLD = "\n".join(
    ["a0: &a0 [x]"] + [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 11)]
)


def test_plain_values_are_read(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: {b: [1, 2.5, true, null, text, '&c', '*d', \"!e\"]}\n")
    source = Source(path)
    assert source.data == {"a": {"b": [1, 2.5, True, None, "text", "&c", "*d", "!e"]}}
    assert source.where(("a", "b", 3)) == f"{path}:1:23"


def test_an_alias_is_the_value_again(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(NINEFOLD.split("a5:")[0])
    assert Source(path).data["a4"][8][0][0][7] == ["x"]
    assert Source(path).where(("a4", 8, 0, 0, 7, 0)) == f"{path}:1:10"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("? [a, b]\n", "1:3", "a key is text"),
        ("b: 1\n? {a: b}\n: 2\n", "2:3", "a key is text"),
        ("a: &x [*x]\n", "1:4", "an alias stands for what it is in"),
        ("- b\n- &x {c: {d: [*x]}}\n", "2:3", "an alias stands for what it is in"),
        (NINEFOLD, "1:5", "too many values"),
        ("a: 1\nb: !!int ''\n", "2:4", "tags"),
        ("a: !!timestamp soon\n", "1:4", "tags"),
        ("a: !!set {b}\n", "1:4", "tags"),
        ('a: 1\nb: ["c\\0d"]\n', "2:5", "zero byte"),
        ('"a\\0b": 1\n', "1:1", "zero byte"),
    ],
)
def test_what_is_no_plain_value_is_refused_with_its_place(tmp_path, text, place, said):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        Source(path)
    assert said in refused.value.what
    assert refused.value.where == f"{path}:{place}"


@pytest.mark.parametrize("text", ["a: " + "[" * 3000, "a: " + "[" * 3000 + "]" * 3000, "- " * 3000])
def test_depth_has_an_end(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"x\.yaml: is nested too deeply"):
        Source(path)
