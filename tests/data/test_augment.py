"""Every augmented image is an exact crop and flip of its own, whatever batch it is in; mixing shares out the labels."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from dyart.data.augment import Augment

COUNT = 4000


def pictures(count=COUNT, channels=2, height=6, width=5, seed=0, low=1):
    """Return images without the value 0, which is padding's and cutout's alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)


IMAGES, INDEX = pictures(), torch.arange(COUNT)


def places(augment, images, result):
    """Return which crop each result is, (rows down, columns right, flipped); fails where it is none, or several."""
    height, width = images.shape[2:]
    found, hits = [None] * len(images), torch.zeros(len(images))
    for place in possible(augment):
        y, x, mirrored = place
        padded = torch.nn.functional.pad(images.flip(3) if mirrored else images, (augment.crop,) * 4)
        same = (padded[:, :, y : y + height, x : x + width] == result).flatten(1).all(dim=1)
        hits += same
        for row in same.nonzero()[:, 0].tolist():
            found[row] = place
    assert (hits == 1).all()
    return found


def possible(augment):
    offsets = range(2 * augment.crop + 1)
    return list(itertools.product(offsets, offsets, (False, True) if augment.flip else (False,)))


def one_bytes(image):
    return image.contiguous().numpy().tobytes()


@pytest.mark.parametrize(("crop", "flip"), [(0, True), (1, False), (2, True)])
def test_an_image_is_a_crop_of_its_padded_self_and_all_crops_are_equally_likely(crop, flip):
    augment = Augment(crop=crop, flip=flip)
    found = places(augment, IMAGES, augment(IMAGES, INDEX, 0, 0))
    assert stats.chisquare([found.count(place) for place in possible(augment)]).pvalue > 1e-5


@pytest.mark.parametrize("augment", [Augment(2, True), Augment(0, True), Augment(1, False, 3), Augment(0, False, 2)])
def test_an_image_is_the_same_in_every_batch(augment):
    whole = augment(IMAGES, INDEX, 5, 3)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))[:300]
    assert torch.equal(augment(IMAGES[order], order, 5, 3), whole[order])
    assert torch.equal(augment(IMAGES[17:18], INDEX[17:18], 5, 3), whole[17:18])
    assert augment(IMAGES[:0], INDEX[:0], 5, 3).shape == IMAGES[:0].shape
    for seed, epoch in ((5, 4), (6, 3)):
        other = augment(IMAGES, INDEX, seed, epoch)
        assert (other != whole).flatten(1).any(dim=1).float().mean() > 0.4


def test_the_choices_of_an_image_have_nothing_to_do_with_each_other():
    augment = Augment(crop=2, flip=True)
    table = np.array([places(augment, IMAGES[:1500], augment(IMAGES[:1500], INDEX[:1500], 0, e)) for e in (0, 1)])
    columns = table.transpose(0, 2, 1).reshape(6, -1).astype(float)
    apart = np.corrcoef(columns) - np.eye(6)
    assert np.abs(apart).max() < 5 / math.sqrt(1500)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("augment", [Augment(2, True), Augment(2, True, 3), Augment(1, False, 3, 1.0), Augment()])
def test_dtype_shape_and_the_images_given_are_kept(augment, dtype):
    images = IMAGES[:20].to(dtype)
    before = images.clone()
    result = augment(images, INDEX[:20], 0, 0)
    mixed, _, share = augment.mixed(result, INDEX[:20], 0, 0)
    for image in (result, mixed):
        assert image.dtype == dtype
        assert image.shape == images.shape
    assert torch.equal(images, before), "written to"
    assert share.dtype == torch.float32


@pytest.mark.parametrize("augment", [Augment(2, False), Augment(0, True), Augment(2, True, 3, 1.0)])
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_come_last_in_memory(augment, channels):
    images = pictures(20, channels)
    result = augment(images, INDEX[:20], 0, 0)
    assert result.is_contiguous(memory_format=torch.channels_last)
    mixed = augment.mixed(result, INDEX[:20], 0, 0)[0]
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    # Any layout gives the same images.
    assert torch.equal(augment(images.contiguous(memory_format=torch.channels_last), INDEX[:20], 0, 0), result)


def test_vectors_pass_untouched():
    augment = Augment(2, True, 3, 1.0)
    vectors = torch.rand(6, 4)
    assert augment(vectors, INDEX[:6], 0, 0) is vectors
    mixed, _, share = augment.mixed(vectors, INDEX[:6], 0, 0)
    assert mixed is vectors
    assert (share == 0).all()


def test_the_global_generator_is_left_alone():
    state = torch.random.get_rng_state()
    augment = Augment(2, True, 3, 1.0)
    augment.mixed(augment(IMAGES[:9], INDEX[:9], 0, 0), INDEX[:9], 0, 0)
    assert torch.equal(torch.random.get_rng_state(), state)


# Cutout


@pytest.mark.parametrize("side", [1, 2, 3, 4, 9, 100])
def test_cutout_is_a_square_around_any_pixel(side):
    result = Augment(cutout=side)(IMAGES, INDEX, 0, 0)
    gone = (result == 0).all(dim=1)
    assert torch.equal((result == 0).any(dim=1), gone), "in all channels alike"
    assert torch.equal(torch.where(gone[:, None], IMAGES, result), IMAGES), "the rest is as it was"
    height, width = IMAGES.shape[2:]
    wanted = {}
    for y in range(height):
        for x in range(width):
            mask = torch.zeros(height, width, dtype=torch.bool)
            top, left = y - side // 2, x - side // 2
            mask[max(top, 0) : top + side, max(left, 0) : left + side] = True
            wanted.setdefault(one_bytes(mask), []).append((y, x))
    seen = [one_bytes(mask) for mask in gone]
    assert set(seen) == set(wanted)
    expected = np.array([len(centres) for centres in wanted.values()]) / (height * width) * COUNT
    if len(wanted) > 1:
        assert stats.chisquare([seen.count(mask) for mask in wanted], expected).pvalue > 1e-5


# Cutmix


def test_mixed_pixels_come_from_the_image_or_its_partner_and_the_share_is_their_area():
    # Pixel values name the image: which of the two a pixel comes from is never in doubt.
    images = (torch.arange(200)[:, None, None, None] % 251 + 1).expand(200, 3, 16, 12).to(torch.uint8)
    mixed, partner, share = Augment(cutmix=1.0).mixed(images, INDEX[:200], 0, 0)
    assert sorted(partner.tolist()) == list(range(200))
    assert (partner != torch.arange(200)).all(), "a partner is another image"
    other = mixed != images
    assert torch.equal(mixed[other], images[partner][other])
    torch.testing.assert_close(share, other.float().mean(dim=(1, 2, 3)))
    for mask in other[:, 0]:
        rows, columns = mask.any(dim=1), mask.any(dim=0)
        assert torch.equal(mask, rows[:, None] & columns[None, :]), "a rectangle"
        for line in (rows, columns):
            on = line.nonzero()[:, 0]
            assert len(on) == 0 or len(on) == on[-1] - on[0] + 1, "without gaps"


def shares(cutmix, size=32, count=20_000):
    images = torch.zeros(count, 1, size, size, dtype=torch.uint8)
    return Augment(cutmix=cutmix).mixed(images, torch.arange(count), 2, 1)[2].double()


def test_the_area_is_uniform_before_the_border_cuts_it_off():
    share = shares(1.0)
    # With s^2 uniform and the centre anywhere, an axis keeps s - s^2 / 4 on average:
    # E (s - s^2/4)^2 = 1/2 - 1/5 + 1/48.
    assert abs(share.mean() - (1 / 2 - 1 / 5 + 1 / 48)) < 0.01
    # The same in continuous coordinates; 32 pixels are coarser than those.
    random = np.random.RandomState(0)
    s, y, x = np.sqrt(random.rand(200_000)), random.rand(200_000), random.rand(200_000)
    kept = [np.minimum(c + s / 2, 1) - np.maximum(c - s / 2, 0) for c in (y, x)]
    assert stats.ks_2samp(share, kept[0] * kept[1]).statistic < 0.03


@pytest.mark.parametrize("cutmix", [0.0, 0.3, 1.0])
def test_the_probability_to_mix(cutmix):
    share = shares(cutmix)
    # About one rectangle in a thousand is smaller than a pixel.
    assert abs((share > 0).double().mean() - cutmix) < 0.015
    assert cutmix > 0 or (share == 0).all()
    assert share.max() <= 1


def test_mixing_depends_on_index_and_epoch_but_not_on_the_place_in_the_batch():
    images = torch.zeros(50, 1, 16, 16, dtype=torch.uint8)
    augment, index = Augment(cutmix=0.5), INDEX[:50]
    share = augment.mixed(images, index, 0, 0)[2]
    assert torch.equal(augment.mixed(images, index.flip(0), 0, 0)[2], share.flip(0))
    assert not torch.equal(augment.mixed(images, index, 0, 1)[2], share)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": -1}, "crop=-1"),
        ({"cutout": -3}, "cutout=-3"),
        ({"cutmix": -0.1}, "-0.1"),
        ({"cutmix": 1.5}, "1.5"),
        ({"cutmix": math.nan}, "nan"),
    ],
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        Augment(**settings)
