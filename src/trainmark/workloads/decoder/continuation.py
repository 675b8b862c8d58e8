"""Samples continuations of a text from a trained decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainmark.data.text import token_files
from trainmark.data.text.token_files import TokenStream, Vocabulary, read_index
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.recipe import knob
from trainmark.record.sample import Sample, SampleSettings, TextPart
from trainmark.workloads.decoder.model import TextDecoder
from trainmark.workloads.sampling import SampleRequest, Trained

GIVEN = 8
"""Length of a prompt from the validation text, where no text is given."""


@dataclass(frozen=True, kw_only=True)
class ContinuationSettings(SampleSettings):
    continuations: int = knob(3, least=1, most=100)
    tokens: int = knob(40, least=1, most=10_000)
    """Tokens to generate."""
    temperature: float = knob(1.0, least=0, most=10)
    """Softmax temperature; 0 is greedy."""


def sample(trained: Trained, request: SampleRequest) -> Sample:
    """Continuations of the given text, or of prompts from the validation text."""
    settings = request.settings(ContinuationSettings)
    words = token_files.open_vocabulary(request.data_folder)
    if words is None:
        raise NotReadyError(
            f"{request.data_folder} holds tokens alone and no tokenizer.json, so that no text can be written; prepare "
            "the set with --tokenizer"
        )
    beginnings = _read_prompts(request, words, trained.model.recipe.context, settings.continuations)
    lines = []
    for number, given in enumerate(beginnings):
        whole = continue_tokens(
            trained.model,
            given,
            settings.tokens,
            seed=settings.seed + number,
            known=min(words.size, trained.recipe.vocabulary),
            temperature=settings.temperature,
        )
        lines.append(_format_line(words, given, whole))
    what = "a text" if request.given else "the validation text"
    return Sample(
        parts=(TextPart(text="\n".join(lines), caption=f"how the network goes on with {what}, after |"),),
        shown=request.given if request.given else f"{GIVEN} tokens of the validation text each",
        generator=f"temperature {settings.temperature:g}",
        facts={"continuations": lines, "tokens": settings.tokens},
    )


@torch.no_grad()
def continue_tokens(
    model: TextDecoder, tokens: Sequence[int], added: int, *, seed: int, known: int, temperature: float = 1.0
) -> list[int]:
    """The tokens and `added` more; only the first `known` of the vocabulary are sampled."""
    device = next(model.parameters()).device
    lot = torch.Generator().manual_seed(seed)
    found = list(tokens)
    for _ in range(added):
        window = torch.tensor([found[-model.recipe.context :]], device=device)
        scores: Tensor = model(window, last=True)[0, -1, :known].float().cpu()
        if temperature == 0:
            found.append(int(scores.argmax()))
        else:
            chances = torch.softmax(scores / temperature, dim=-1)
            found.append(int(torch.multinomial(chances, 1, generator=lot)))
    return found


def _read_prompts(request: SampleRequest, words: Vocabulary, context: int, count: int) -> list[list[int]]:
    if request.given is not None:
        tokens = words.encode(request.given)
        if not tokens:
            raise UsageError("an empty text has nothing to go on with; give a word or more")
        return [tokens] * count
    stream = TokenStream(request.data_folder, read_index(request.data_folder).splits["val"])
    places = [number * context for number in range(count) if number * context + GIVEN <= len(stream)]
    return [stream.read(place, GIVEN).tolist() for place in places]


def _format_line(words: Vocabulary, given: Sequence[int], whole: Sequence[int]) -> str:
    begun, text = words.decode(given), words.decode(whole)
    rest = text[len(begun) :] if text.startswith(begun) else words.decode(whole[len(given) :])
    return f"{begun} |{rest}".replace("\n", " / ")
