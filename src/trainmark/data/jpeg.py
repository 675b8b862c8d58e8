"""Decodes an image file into a cropped, resized RGB square, as Pillow would but faster."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from trainmark.data.crops import Crop

if TYPE_CHECKING:
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG")
"""Accepted formats of a .JPEG file, by Pillow's names: ImageNet has a PNG among its JPEGs."""
MAX_PIXELS = 100_000_000
"""A header that claims more is refused: a few bytes could otherwise request all memory."""
MAX_SCRATCH_BYTES = 48_000_000
"""Limit of the reused decoding buffer; larger images get their own."""
REDUCE_MARGIN = 1.25
"""Minimum size of a crop decoded at reduced scale, relative to the resize's output. Measured on synthetic photographs:
the mean difference to a full decode is about 2.5 levels at 1.0 and about 1.2 at 1.25."""


class BadImage(ValueError):  # noqa: N818 - reads as what it is
    """An incomplete or undecodable image; the message is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Turn:
    """EXIF orientation: rows and columns swapped, then either reversed."""

    swap: bool = False
    reverse_rows: bool = False
    reverse_columns: bool = False


_AS_STORED = _Turn()
_TURNS = {
    1: _AS_STORED,
    2: _Turn(reverse_columns=True),
    3: _Turn(reverse_rows=True, reverse_columns=True),
    4: _Turn(reverse_rows=True),
    5: _Turn(swap=True),
    6: _Turn(swap=True, reverse_columns=True),
    7: _Turn(swap=True, reverse_rows=True, reverse_columns=True),
    8: _Turn(swap=True, reverse_rows=True),
}
"""By EXIF orientation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """Header of an ordinary JPEG."""

    width: int
    height: int
    height_at: int
    """Offset of the two bytes of the height."""
    turn: _Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class _Box:
    """A part of the stored image, in whole pixels."""

    top: int
    bottom: int
    left: int
    right: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlannedImage:
    """An encoded image with its crop; see `JpegDecoder.plan`."""

    data: bytes
    choose_crop: Callable[[int, int], Crop]
    header: _Header | None
    """None if Pillow must decode the image."""
    crop: Crop | None
    factor: int


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

    def plan(self, data: bytes, choose_crop: Callable[[int, int], Crop], *, may_reduce: bool = False) -> PlannedImage:
        """Plans the work of `make` from the header, or raises `BadImage`.

        may_reduce: decode an image whose crop is much larger than its output at 1/2, 1/4 or 1/8 scale, which is faster
        and no longer equal to Pillow.
        """
        header = _read_header(data, turn_by_exif=self._turn_by_exif)
        if header is None:
            return PlannedImage(data=data, choose_crop=choose_crop, header=None, crop=None, factor=1)
        width, height = header.width, header.height
        crop = choose_crop(height, width) if header.turn.swap else choose_crop(width, height)
        factor = _reduction(crop) if may_reduce else 1
        return PlannedImage(data=data, choose_crop=choose_crop, header=header, crop=crop, factor=factor)

    def make(self, planned: PlannedImage, out: Pixels) -> None:
        """Writes a planned image's crop into `out` (size, size, 3), or raises `BadImage`."""
        header, crop = planned.header, planned.crop
        if header is not None and crop is not None:
            box = _stored_box(crop, header)
            try:
                pixels = self._decode_jpeg(planned.data, header, box.bottom, planned.factor)
            except ValueError:
                pass
            else:
                self._place(_slice_box(pixels, box, planned.factor), crop, header.turn, out)
                return
        # anything unusual is left to Pillow: CMYK, a PNG named .JPEG, bytes libjpeg warns about
        whole = _decode_with_pillow(planned.data, turn_by_exif=self._turn_by_exif)
        crop = planned.choose_crop(whole.shape[1], whole.shape[0])
        self._place(whole[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width], crop, _AS_STORED, out)

    def decode(
        self, data: bytes, choose_crop: Callable[[int, int], Crop], out: Pixels, *, may_reduce: bool = False
    ) -> None:
        """Writes `choose_crop(width, height)` of the image into `out`."""
        self.make(self.plan(data, choose_crop, may_reduce=may_reduce), out)

    def decode_whole(self, data: bytes) -> Pixels:
        """The stored image (height, width, 3), valid until the next decode; or raises `BadImage`."""
        header = _read_header(data, turn_by_exif=False)
        if header is not None:
            with contextlib.suppress(ValueError):
                return self._decode_jpeg(data, header, header.height, 1)
        return _decode_with_pillow(data, turn_by_exif=False)

    def check(self, data: bytes) -> str:
        """Raises `BadImage` where `decode` would for some crop; else returns libjpeg's warning, usually empty."""
        header = _read_header(data, turn_by_exif=False)
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

    def _place(self, box: Pixels, crop: Crop, turn: _Turn, out: Pixels) -> None:
        """Resizes a box and writes its kept part into `out`, oriented and flipped."""
        import torch  # lazy: checking files needs no torch

        size = (crop.resized_width, crop.resized_height) if turn.swap else (crop.resized_height, crop.resized_width)
        if size == out.shape[:2] and turn is _AS_STORED:
            # flipped before the resize, with the same result, so that the resize can write into `out`
            stored = _as_image(box)
            _resize(stored.flip(3) if crop.flip else stored, out)
            return
        if self._resized.shape[:2] != size:
            self._resized = np.empty((*size, 3), np.uint8)
        _resize(_as_image(box), self._resized)
        image = torch.from_numpy(self._resized)
        if turn.swap:
            image = image.transpose(0, 1)
        top = crop.resized_height - crop.keep_top - crop.size if turn.reverse_rows else crop.keep_top
        left = crop.resized_width - crop.keep_left - crop.size if turn.reverse_columns else crop.keep_left
        square = image[top : top + crop.size, left : left + crop.size]
        # two flips cancel
        flips = [0] * turn.reverse_rows + [1] * (turn.reverse_columns != crop.flip)
        if flips:
            square = square.flip(flips)
        torch.from_numpy(out).copy_(square)

    def _get_buffer(self, size_bytes: int) -> Pixels:
        # new memory per image would cost a page fault every 4 KiB
        if size_bytes > MAX_SCRATCH_BYTES:
            return np.empty(size_bytes, np.uint8)
        if len(self._scratch) < size_bytes:
            self._scratch = np.empty(size_bytes, np.uint8)
        return self._scratch


_END_OF_IMAGE = b"\xff\xd9"


def _stored_box(crop: Crop, header: _Header) -> _Box:
    """The crop's box in the stored image."""
    turn = header.turn
    height, width = (header.width, header.height) if turn.swap else (header.height, header.width)
    top = height - crop.top - crop.height if turn.reverse_rows else crop.top
    left = width - crop.left - crop.width if turn.reverse_columns else crop.left
    if turn.swap:
        return _Box(top=left, bottom=left + crop.width, left=top, right=top + crop.height)
    return _Box(top=top, bottom=top + crop.height, left=left, right=left + crop.width)


def _reduction(crop: Crop) -> int:
    """The largest power of two by which the decoder may shrink the image for this crop.

    Only powers of two: libjpeg's other scales are slower than a full decode.
    """
    spare = min(crop.height / crop.resized_height, crop.width / crop.resized_width) / REDUCE_MARGIN
    return 8 if spare >= 8 else 4 if spare >= 4 else 2 if spare >= 2 else 1


def _slice_box(pixels: Pixels, box: _Box, factor: int) -> Pixels:
    """The box of an image decoded at 1/factor, snapped to whole pixels."""
    if factor == 1:
        return pixels[box.top : box.bottom, box.left : box.right]
    return pixels[box.top // factor : round(box.bottom / factor), box.left // factor : round(box.right / factor)]


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


def _read_header(data: bytes, *, turn_by_exif: bool) -> _Header | None:
    """Size and orientation of an ordinary JPEG (8 bits, grey or three colours); None leaves it to Pillow.

    Walking the segments takes a few microseconds, opening the file with Pillow a hundred.
    """
    if data[:2] != b"\xff\xd8":
        return None
    orientation = 1
    at = 2
    end = len(data)
    while at + 4 <= end and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        length = (data[at + 2] << 8) | data[at + 3]
        if turn_by_exif and marker == 0xE1 and orientation == 1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _exif_orientation(data[at + 10 : at + 2 + length])
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 10 > end or data[at + 4] != 8 or data[at + 9] not in (1, 3):
                return None
            height, width = (data[at + 5] << 8) | data[at + 6], (data[at + 7] << 8) | data[at + 8]
            if height == 0 or width == 0:
                return None
            _check_size(width, height)
            return _Header(width=width, height=height, height_at=at + 5, turn=_TURNS[orientation])
        elif marker in (0xD9, 0xDA) or length < 2:
            return None
        at += 2 + length
    return None


def _exif_orientation(tiff: bytes) -> int:
    """The orientation tag of an EXIF block's first directory; 1 if absent or invalid."""
    order = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None:
        return 1

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], "little" if order == "little" else "big")

    directory = number(4, 4)
    for entry in range(directory + 2, directory + 2 + 12 * number(directory, 2), 12):
        if entry + 12 > len(tiff):
            break
        if number(entry, 2) == 0x0112:
            value = number(entry + 8, 2)
            return value if number(entry + 2, 2) == 3 and value in _TURNS else 1
    return 1


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
