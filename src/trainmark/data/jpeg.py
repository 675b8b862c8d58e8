"""Decodes an image file into a cropped, resized RGB square, as Pillow would but faster."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from trainmark.data.distributed_sampler import CounterRng

if TYPE_CHECKING:
    from torch import Tensor

MIN_AREA = 0.08
"""Default minimum share of the image's area that a random crop covers, uniform up to 1."""
RATIO = (3 / 4, 4 / 3)
"""Aspect ratio of a random crop, log-uniform."""
TRIES = 10
"""Random shapes tried before the central fallback."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crop:
    """A box of the image is resized, and a square of the result is kept, possibly flipped."""

    top: int
    left: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    keep_top: int = 0
    keep_left: int = 0
    size: int
    """Side of the square that is kept, in pixels of the resized image."""
    flip: bool = False
    """Flip horizontally, last."""


def train_crop(
    width: int,
    height: int,
    *,
    size: int,
    seed: int,
    epoch: int,
    index: int,
    view: int = 0,
    least_area: float = MIN_AREA,
) -> Crop:
    """The usual random resized crop and flip, a function of (seed, epoch, index, view)."""
    draw = CounterRng(seed, epoch, index, view)
    flip = draw.uniform() < 0.5
    box_width, box_height = _random_shape(width, height, draw, least_area)
    if box_width:
        top, left = draw.below(height - box_height + 1), draw.below(width - box_width + 1)
    else:
        box_width, box_height = _central_shape(width, height)
        top, left = (height - box_height) // 2, (width - box_width) // 2
    return Crop(
        top=top,
        left=left,
        height=box_height,
        width=box_width,
        resized_height=size,
        resized_width=size,
        size=size,
        flip=flip,
    )


def eval_crop(width: int, height: int, *, size: int, resize_to: int) -> Crop:
    """The usual evaluation crop: the shorter side resized to `resize_to`, then a centred square of `size`.

    Two steps: one direct resize of the matching box would sample other positions wherever the box does not fall on
    whole pixels.
    """
    if size > resize_to:
        raise ValueError(f"a square of {size} does not fit a shorter side of {resize_to}")
    if width <= height:
        resized_width, resized_height = resize_to, resize_to * height // width
    else:
        resized_width, resized_height = resize_to * width // height, resize_to
    return Crop(
        top=0,
        left=0,
        height=height,
        width=width,
        resized_height=resized_height,
        resized_width=resized_width,
        keep_top=round((resized_height - size) / 2),
        keep_left=round((resized_width - size) / 2),
        size=size,
    )


def _random_shape(width: int, height: int, draw: CounterRng, least_area: float) -> tuple[int, int]:
    """The first random (width, height) that fits the image, or (0, 0) if none did."""
    area = width * height
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(TRIES):
        target = area * (least_area + (1 - least_area) * draw.uniform())
        ratio = math.exp(low + (high - low) * draw.uniform())
        box_width, box_height = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            return box_width, box_height
    return 0, 0


def _central_shape(width: int, height: int) -> tuple[int, int]:
    """The whole image, shortened to the nearest allowed ratio."""
    if width < height * RATIO[0]:
        return width, max(1, min(height, round(width / RATIO[0])))
    if width > height * RATIO[1]:
        return max(1, min(width, round(height * RATIO[1]))), height
    return width, height


Pixels = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG")
"""Accepted formats of a .JPEG file, by Pillow's names: ImageNet has a PNG among its JPEGs."""
MAX_PIXELS = 100_000_000
"""A header that claims more is refused: a few bytes could otherwise request all memory."""
REDUCE_MARGIN = 1.25
"""Minimum size of a crop decoded at reduced scale, relative to the resize's output. Measured on synthetic photographs:
the mean difference to a full decode is about 2.5 levels at 1.0 and about 1.2 at 1.25."""


class BadImage(ValueError):  # noqa: N818 - reads as what it is
    """An incomplete or undecodable image; the message is the reason."""


class _Header(NamedTuple):
    """Of an ordinary JPEG."""

    width: int
    height: int
    height_at: int
    """Offset of the two bytes of the height."""


class JpegDecoder:
    """Decodes images through one scratch buffer; create one per process or thread.

    Pixels equal Pillow's: libjpeg's exact DCT and smooth chroma upsampling. The fast variants were measured to save 3
    to 4 % of the time and to change pixels by 0.6 to 1.0 levels on average and up to 40, so they are not used.
    """

    def __init__(self, *, turn_by_exif: bool = False) -> None:
        """turn_by_exif: apply the EXIF orientation before the crop, which the usual training pipelines do not."""
        self._turn_by_exif = turn_by_exif
        self._scratch: Pixels = np.empty(0, np.uint8)
        self._resized: Pixels = np.empty((0, 0, 3), np.uint8)

    def decode(
        self, data: bytes, choose_crop: Callable[[int, int], Crop], out: Pixels, *, may_reduce: bool = False
    ) -> None:
        """Writes `choose_crop(width, height)` of the image into `out` (size, size, 3), or raises `BadImage`.

        may_reduce: decode an image whose crop is much larger than its output at 1/2, 1/4 or 1/8 scale, which is faster
        and no longer equal to Pillow.
        """
        header = None if self._turn_by_exif and _EXIF in data else _read_header(data)
        if header is not None:
            crop = choose_crop(header.width, header.height)
            factor = _reduction(crop) if may_reduce else 1
            try:
                pixels = self._decode_jpeg(data, header, crop.top + crop.height, factor)
            except ValueError:
                pass
            else:
                self._place(_cut(pixels, crop, factor), crop, out)
                return
        # anything unusual is left to Pillow: CMYK, a PNG named .JPEG, bytes libjpeg warns about, images to be turned
        whole = _decode_with_pillow(data, turn_by_exif=self._turn_by_exif)
        crop = choose_crop(whole.shape[1], whole.shape[0])
        self._place(_cut(whole, crop, 1), crop, out)

    def decode_whole(self, data: bytes) -> Pixels:
        """The stored image (height, width, 3), valid until the next decode; or raises `BadImage`."""
        header = _read_header(data)
        if header is not None:
            with contextlib.suppress(ValueError):
                return self._decode_jpeg(data, header, header.height, 1)
        return _decode_with_pillow(data, turn_by_exif=False)

    def check(self, data: bytes) -> str:
        """Raises `BadImage` where `decode` would for some crop; else returns libjpeg's warning, usually empty."""
        header = _read_header(data)
        complaint = ""
        if header is not None:
            try:
                self._decode_jpeg(data, header, header.height, 1, strict=True)
                return ""
            except ValueError as error:
                complaint = str(error)
            with contextlib.suppress(ValueError):
                self._decode_jpeg(data, header, header.height, 1)
                return complaint
        _decode_with_pillow(data, turn_by_exif=False)
        return complaint

    def _decode_jpeg(self, data: bytes, header: _Header, bottom: int, factor: int, *, strict: bool = False) -> Pixels:
        """The stored image down to row `bottom` at least, at 1/factor scale.

        Raises ValueError where Pillow should decode, and if strict also for damage that libjpeg tolerates.
        """
        whole = data.endswith(_END_OF_IMAGE)
        source: bytes | bytearray = data
        rows = header.height
        # one row more than needed: smooth chroma upsampling reads the next row
        if whole and bottom + factor < rows:
            # with a smaller height in the header, nothing below the crop is decoded
            rows = bottom + factor
            source = bytearray(data)
            source[header.height_at : header.height_at + 2] = rows.to_bytes(2, "big")
        height, width = -(-rows // factor), -(-header.width // factor)
        pixels: Pixels = simplejpeg.decode_jpeg(
            source,
            "RGB",
            # the smallest scale that keeps both minima is 1/factor
            min_height=height if factor > 1 else 0,
            min_width=width if factor > 1 else 0,
            buffer=self._get_buffer(height * width * 3),
            # a truncated file is a fault; damage that libjpeg tolerates, Pillow tolerates too
            strict=strict or not whole,
        )
        if pixels.shape != (height, width, 3):
            raise ValueError(f"decoded to {pixels.shape}")
        return pixels

    def _place(self, box: Pixels, crop: Crop, out: Pixels) -> None:
        """Resizes a box and writes its kept part into `out`, perhaps flipped."""
        import torch  # lazy: checking files needs no torch

        size = (crop.resized_height, crop.resized_width)
        if size == out.shape[:2]:
            # flipped before the resize, with the same result, so that the resize can write into `out`
            stored = _as_image(box)
            _resize(stored.flip(3) if crop.flip else stored, out)
            return
        if self._resized.shape[:2] != size:
            self._resized = np.empty((*size, 3), np.uint8)
        _resize(_as_image(box), self._resized)
        image = torch.from_numpy(self._resized)
        square = image[crop.keep_top : crop.keep_top + crop.size, crop.keep_left : crop.keep_left + crop.size]
        torch.from_numpy(out).copy_(square.flip(1) if crop.flip else square)

    def _get_buffer(self, size_bytes: int) -> Pixels:
        # new memory per image would cost a page fault every 4 KiB
        if len(self._scratch) < size_bytes:
            self._scratch = np.empty(size_bytes, np.uint8)
        return self._scratch


_END_OF_IMAGE = b"\xff\xd9"
_EXIF = b"Exif\0\0"


def _reduction(crop: Crop) -> int:
    """The largest power of two by which the decoder may shrink the image for this crop.

    Only powers of two: libjpeg's other scales are slower than a full decode.
    """
    spare = min(crop.height / crop.resized_height, crop.width / crop.resized_width) / REDUCE_MARGIN
    return 8 if spare >= 8 else 4 if spare >= 4 else 2 if spare >= 2 else 1


def _cut(pixels: Pixels, crop: Crop, factor: int) -> Pixels:
    """The crop's box of an image decoded at 1/factor, snapped to whole pixels."""
    bottom, right = crop.top + crop.height, crop.left + crop.width
    return pixels[crop.top // factor : round(bottom / factor), crop.left // factor : round(right / factor)]


def _resize(image: Tensor, out: Pixels) -> None:
    import torch

    # torch has a vectorised antialiased resize for this layout, equal to Pillow's to within one level; called directly
    # because `interpolate` has no `out`
    torch._C._nn._upsample_bilinear2d_aa(image, out.shape[:2], False, out=_as_image(out))  # type: ignore[call-arg]


def _as_image(pixels: Pixels) -> Tensor:
    """(height, width, 3) as a channels_last batch of one."""
    import torch

    # transposed by numpy, whose views cost less than torch's
    return torch.from_numpy(pixels.transpose(2, 0, 1)[None])


def _read_header(data: bytes) -> _Header | None:
    """Size of an ordinary JPEG (8 bits, grey or three colours); None leaves it to Pillow.

    Walking the segments takes a few microseconds, opening the file with Pillow a hundred.
    """
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    end = len(data)
    while at + 4 <= end and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        length = (data[at + 2] << 8) | data[at + 3]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 10 > end or data[at + 4] != 8 or data[at + 9] not in (1, 3):
                return None
            height, width = (data[at + 5] << 8) | data[at + 6], (data[at + 7] << 8) | data[at + 8]
            if height == 0 or width == 0:
                return None
            _check_size(width, height)
            return _Header(width=width, height=height, height_at=at + 5)
        if marker in (0xD9, 0xDA) or length < 2:
            return None
        at += 2 + length
    return None


def _decode_with_pillow(data: bytes, *, turn_by_exif: bool) -> Pixels:
    """The whole image as RGB, in any accepted format."""
    try:
        with warnings.catch_warnings():
            # warnings about metadata and transparency; size is checked below
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(*image.size)
                turned = ImageOps.exif_transpose(image) if turn_by_exif else image
                return np.array(turned.convert("RGB"))
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage("no JPEG and no PNG image" if data else "the file is empty") from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, Image.DecompressionBombError) as error:
        # raised by Pillow's readers on broken bytes
        raise BadImage(str(error) or type(error).__name__) from error


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadImage(f"its header claims {width}x{height} pixels, more than the {MAX_PIXELS:,} allowed")
