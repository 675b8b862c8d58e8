"""A small formant synthesizer: every letter has one sound, and letters alone determine durations.

The voice is a pulse train filtered by formants; breath is cut from tapes of shaped noise. One machine gives the same
samples for the same text and seed; across machines the last bit may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainmark.data import read_toml

RATE_HZ = 22050

Floats = NDArray[np.float32]
Times = NDArray[np.float64]
Letters = list[tuple[str, float, float]]
"""Characters, each with the seconds at which it begins and ends."""

LEAD_S = 0.07
"""Near-silence before the first letter and after the last."""
SPACE_S = 0.05
PAUSE_S = 0.16
"""Pause at a comma or any other sign that is no letter."""
DRAWL = 1.25
"""Lengthening of a letter before a pause."""
GLIDE_S = 0.016
"""Transition time between the formants of two letters, half on either side."""

_VOICE, _BREATH = 25.0, 0.25
"""Levels that put the loudest vowel at about 0.6 of full scale, and a hiss well below it."""
_PEAK = 0.8
_DIP = 0.45
"""Loudness lost where letters meet, so that a double letter is heard as two."""
_RING = 512
"""Length of a pulse response in samples; all formants have decayed by then."""
_STEPS = 16
"""Positions of a pulse per sample."""
_TAPE = 1 << 16
_FLOOR = 0.4
"""Noise floor in units of the last bit."""


@dataclass(frozen=True, kw_only=True)
class Sound:
    """The sound of a letter."""

    seconds: float
    voice: Sequence[tuple[float, float]] = ()
    """Formants: centre in Hz and strength in dB."""
    breath: Sequence[tuple[float, float, float]] = ()
    """Noise: centre and width in Hz and strength in dB."""
    stop: bool = False
    """A plosive: held for a moment, a burst, then fading, instead of even noise."""


SOUNDS = {letter: Sound(**sound) for letter, sound in read_toml(Path(__file__).with_suffix(".toml")).items()}
_SILENCE = Sound(seconds=0)

_FORMANTS = 4
_NEUTRAL_HZ = (500.0, 1500.0, 2500.0, 3500.0)
"""Formant centres of silence."""


def time_letters(text: str) -> Letters:
    """Start and end of every character, case-insensitive."""
    letters, now, text = [], LEAD_S, text.lower()
    for letter, after in zip(text, text[1:] + ".", strict=True):
        end = now + _seconds(letter) * (DRAWL if letter in SOUNDS and _is_pause(after) else 1)
        letters.append((letter, now, end))
        now = end
    return letters


def synthesize(text: str, seed: int) -> NDArray[np.int16]:
    """The samples of a text; the seed affects the noise only."""
    rng = np.random.default_rng(seed)
    letters = time_letters(text)
    length = round(RATE_HZ * (letters[-1][2] + LEAD_S))
    sound = _VOICE * _voice(letters, length) + _BREATH * _breath(letters, length, rng)
    sound *= _dips(letters, length)
    samples = np.clip(sound, -_PEAK, _PEAK) * 32768 + _FLOOR * _random_cut(_tape(None), length, rng)
    whole: NDArray[np.int16] = np.rint(samples).astype(np.int16)
    return whole


def _is_pause(sign: str) -> bool:
    return sign not in SOUNDS and sign not in " -'"


def _seconds(sign: str) -> float:
    if sign in SOUNDS:
        return SOUNDS[sign].seconds
    return PAUSE_S if _is_pause(sign) else SPACE_S


# The voice


def _voice(letters: Letters, length: int) -> Floats:
    pulses = _pulses(letters, length / RATE_HZ)
    centres, strengths = _formants(letters, pulses)
    heard = strengths.any(axis=1)
    whole, part = np.divmod(pulses[heard] * RATE_HZ, 1)
    rings = np.fft.irfft(_spectra(centres[heard], strengths[heard]) * _delays()[(part * _STEPS).astype(int)], _RING)
    places = whole.astype(np.int64)[:, None] + np.arange(_RING)
    voice: Floats = np.bincount(places.ravel(), rings.ravel(), length + _RING)[:length].astype(np.float32)
    return voice


def _spectra(centres: Floats, strengths: Floats) -> NDArray[np.complex64]:
    """Spectrum of each pulse: double resonances, with steep skirts and a soft onset."""
    pitch = _ring_hz()
    spectra = np.zeros((len(centres), len(pitch)), np.complex64)
    for centre, strength in zip(centres.T[..., None], strengths.T[..., None], strict=True):
        detune = (pitch - centre) / (50 + np.float32(0.02) * centre)
        square = detune * detune
        size = strength / (1 + square) ** 2
        # strength / (1 + 1j * detune) ** 2, in real numbers, which are faster
        spectra.real += size * (1 - square)
        spectra.imag -= 2 * size * detune
    return spectra


def _ring_hz() -> Floats:
    return np.fft.rfftfreq(_RING, 1 / RATE_HZ).astype(np.float32)


@cache
def _delays() -> NDArray[np.complex64]:
    """Spectral factors for delays of 0, 1, 2... steps: a pulse seldom falls on a sample."""
    turns = np.arange(_STEPS)[:, None] / _STEPS * _ring_hz() / RATE_HZ
    factors: NDArray[np.complex64] = np.exp(-2j * np.pi * turns).astype(np.complex64)
    return factors


def _pulses(letters: Letters, seconds: float) -> Times:
    """Times of the glottal pulses."""
    times = np.arange(0, seconds, 0.004)
    turns = np.cumsum(_pitch_hz(letters, times)) * 0.004
    pulses: Times = np.interp(np.arange(1, int(turns[-1])), turns, times)
    return pulses


def _pitch_hz(letters: Letters, times: Times) -> Times:
    """Falls from the start of a phrase, begins anew a little lower after a pause, rises towards a question mark."""
    pitch = 98 + 34 * np.exp(-times / 1.5)
    for letter, start, end in letters:
        if _is_pause(letter):
            later = times >= end
            pitch[later] = 98 + 24 * np.exp(-(times[later] - end) / 1.5)
        if letter == "?":
            pitch *= 1 + 0.3 * np.clip((times - start + 0.4) / 0.4, 0, 1) * (times < end)
    return pitch


def _formants(letters: Letters, times: Times) -> tuple[Floats, Floats]:
    """Centres in Hz and strengths of the formants at some moments, (moments, formants) each."""
    sounds = [_SILENCE, *(SOUNDS.get(letter, _SILENCE) for letter, _, _ in letters), _SILENCE]
    targets = np.array([_target(sound) for sound in sounds], np.float32)
    borders = np.array([start for _, start, _ in letters] + [letters[-1][2]])
    nearest = np.abs(times[:, None] - borders).argmin(axis=1)
    share = np.clip((times - borders[nearest]) / GLIDE_S + 0.5, 0, 1).astype(np.float32)[:, None, None]
    mixed = targets[nearest] * (1 - share) + targets[nearest + 1] * share
    return mixed[:, 0], mixed[:, 1]


def _target(sound: Sound) -> tuple[list[float], list[float]]:
    missing = _FORMANTS - len(sound.voice)
    centres = [centre for centre, _ in sound.voice] + list(_NEUTRAL_HZ[_FORMANTS - missing :])
    return centres, [_factor(strength) for _, strength in sound.voice] + [0.0] * missing


def _factor(strength_db: float) -> float:
    return float(10 ** (strength_db / 20))


# The breath


def _breath(letters: Letters, length: int, rng: np.random.Generator) -> Floats:
    breath = np.zeros(length, np.float32)
    for letter, start, end in letters:
        if letter in SOUNDS and SOUNDS[letter].breath:
            first, last = round(start * RATE_HZ), round(end * RATE_HZ)
            swell = _swell(last - first, SOUNDS[letter].stop)
            breath[first:last] += _random_cut(_tape(letter), last - first, rng) * swell
    return breath


@cache
def _swell(length: int, stop: bool) -> Floats:
    """Envelope of the breath over a letter."""
    at = np.arange(length) / length
    if stop:
        loud = (
            np.clip((at - 0.2) / 0.08, 0, 1) * np.exp(-1.2 * np.clip(at - 0.28, 0, 1)) * np.clip((1 - at) / 0.1, 0, 1)
        )
    else:
        loud = np.clip(at / 0.12, 0, 1) * np.clip((1 - at) / 0.12, 0, 1)
    swell: Floats = (loud * loud * (3 - 2 * loud)).astype(np.float32)
    return swell


@cache
def _tape(letter: str | None) -> Floats:
    """A long piece of a letter's noise, the same in every process; white noise without a letter."""
    rng = np.random.default_rng(ord(letter) if letter else 0)
    noise = rng.standard_normal(_TAPE)
    if letter is None:
        return noise.astype(np.float32)
    pitch = np.fft.rfftfreq(_TAPE, 1 / RATE_HZ)
    shape = np.zeros_like(pitch)
    for centre, width, strength in SOUNDS[letter].breath:
        bump = np.exp(-0.5 * ((pitch - centre) / width) ** 2)
        shape += _factor(strength) * bump / np.sqrt((bump**2).mean())
    tape: Floats = np.fft.irfft(np.fft.rfft(noise) * shape).astype(np.float32)
    return tape


def _random_cut(tape: Floats, length: int, rng: np.random.Generator) -> Floats:
    """A random piece of a circular tape."""
    start = int(rng.integers(len(tape)))
    return np.resize(np.roll(tape, -start), length) if start + length > len(tape) else tape[start : start + length]


def _dips(letters: Letters, length: int) -> Floats:
    """Envelope: 1 within letters, lower where they meet, 0 in pauses."""
    times, levels = [LEAD_S - 0.012], [0.0]
    for letter, start, end in letters:
        edge, level = min(0.012, (end - start) / 4), float(letter in SOUNDS)
        times += [start, start + edge, end - edge]
        levels += [1 - _DIP, level, level]
    times += [letters[-1][2], letters[-1][2] + 0.03]
    levels += [1 - _DIP, 0.0]
    dips: Floats = np.interp(np.arange(length) / RATE_HZ, times, levels).astype(np.float32)
    return dips
