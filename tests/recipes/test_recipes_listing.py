"""What ``dyart recipes`` lists, and that the files come along with the package."""

from importlib import resources

import pytest
from recipe_cases import resolved

from dyart.recipes import RecipeError, names
from dyart.recipes.listing import table


def listed(pattern: str | None = None) -> list[str]:
    return [name for name, _ in table(pattern)]


def test_all_recipes_are_listed_with_their_notes():
    assert table() == [(name, resolved()[name].note) for name in sorted(resolved())]


def test_common_parts_are_not_listed():
    files = {entry.name for entry in resources.files("dyart.recipes").iterdir()}
    assert "_common.yaml" in files
    assert not any(name.startswith("_") for name in names())


def test_a_part_of_the_name():
    assert listed("resnet18-gn") == [name for name in names() if "resnet18-gn" in name]
    assert listed("cifar10-wrn28-10-dyart-extra") == ["cifar10-wrn28-10-dyart-extra"]


def test_a_part_of_the_note_in_any_case():
    found = listed("table 7")
    assert len(found) == 6 + 12
    assert {"cifar10-wrn28-10-at", "cifar10-wrn28-10-dyart", "cifar10-wrn28-10-dyart-a8-r16-l3000"} <= set(found)
    assert listed("Table 7") == found


def test_a_pattern_for_the_whole_name():
    assert listed("*-at") == [name for name in names() if name.endswith("-at")]
    assert listed("cifar10-resnet18-?t") == ["cifar10-resnet18-at"]


def test_nothing_fits():
    with pytest.raises(RecipeError, match=r"no recipe fits 'cifar10-resnet-at'.*cifar10-resnet18-at"):
        table("cifar10-resnet-at")
