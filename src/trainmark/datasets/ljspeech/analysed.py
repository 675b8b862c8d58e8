"""Sees to it that the mel of every clip is in the cache, and leaves out the clips that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.datasets.audio import BadAudioError
from trainmark.datasets.ljspeech.reader import Clip
from trainmark.datasets.mel_cache import MelCache


def analysed(
    splits: Sequence[Sequence[Clip]], cache: MelCache, skip_bad: int, *, first: float = 0.0
) -> tuple[list[list[Clip]], list[tuple[str, str]]]:
    """The clips of each split that can be read, and those that cannot with the reason, of which `skip_bad` may be.

    All ranks find the same ones, because each looks at every clip; the mels missing from the cache are shared out by
    starting at different places: `first` is where, as a share of the clips.
    """
    skipped: list[tuple[str, str]] = []
    return [_readable(clips, cache, skip_bad, first, skipped) for clips in splits], skipped


def _readable(
    clips: Sequence[Clip], cache: MelCache, skip_bad: int, first: float, skipped: list[tuple[str, str]]
) -> list[Clip]:
    start = int(len(clips) * first)
    bad = dict(cache.fill([clip.path for clip in (*clips[start:], *clips[:start])]))
    for clip in clips:
        if clip.path in bad:
            skipped.append((str(clip.path), bad[clip.path]))
            if len(skipped) > skip_bad:
                allowed = f" (--skip-bad allows {skip_bad}, and all are used up)" if skip_bad else ""
                raise BadAudioError(clip.path, bad[clip.path] + allowed)
    return [clip for clip in clips if clip.path not in bad]
