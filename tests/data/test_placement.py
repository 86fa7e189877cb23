"""Placements of augmented images: pixel by pixel, and there and back."""

import pytest
import torch

from dyart.data.augment import Augment
from dyart.data.placement import drawn, original, placed

INDEX = torch.arange(40) * 3 + 1
IMAGES = torch.randint(1, 256, (40, 2, 7, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=[(2, True), (2, False), (0, True)], ids=["both", "shifted", "mirrored"])
def placement(request):
    crop, flip = request.param
    return drawn(INDEX, 5, 3, crop, flip)


def test_every_pixel_is_the_one_that_the_placement_names(placement):
    shown = placed(IMAGES, placement)
    for image, result, (down, right, mirrored) in zip(IMAGES, shown, placement.tolist(), strict=True):
        for i in range(7):
            for j in range(9):
                row, column = i + down, (8 - j if mirrored else j) + right
                inside = 0 <= row < 7 and 0 <= column < 9
                expected = image[:, row, column] if inside else torch.zeros(2, dtype=torch.uint8)
                assert torch.equal(result[:, i, j], expected)


def test_back_in_the_original_what_was_shown_is_where_it_was_and_the_rest_is_zero(placement):
    back = original(placed(IMAGES, placement), placement)
    seen = original(placed(torch.ones_like(IMAGES), placement), placement)
    assert torch.equal(back, IMAGES * seen)
    assert torch.equal(placed(back, placement), placed(IMAGES, placement))
    # Zero where the crop cut off: for each image, whole rows and columns.
    kept = (7 - placement[:, 0].abs()) * (9 - placement[:, 1].abs())
    assert torch.equal(seen[:, 0].sum(dim=(1, 2)), kept)


def test_placements_are_those_of_the_augmentation():
    augment = Augment(crop=3, flip=True)
    places = augment.placement(IMAGES, INDEX, 5, 3)
    assert torch.equal(augment(IMAGES, INDEX, 5, 3), placed(IMAGES, places))
    assert torch.equal(augment(IMAGES, INDEX, 5, 3, places), placed(IMAGES, places))
    assert places[:, :2].abs().max() == 3
    assert set(places[:, 2].tolist()) == {0, 1}


@pytest.mark.parametrize("augment", [Augment(), Augment(cutout=2)])
def test_images_that_stay_have_none(augment):
    assert augment.placement(IMAGES, INDEX, 5, 3) is None


def test_vectors_have_none():
    assert Augment(crop=2, flip=True).placement(torch.zeros(40, 5), INDEX, 0, 0) is None
