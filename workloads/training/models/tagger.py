"""One-layer LSTM that names the slot of every word and the intent of the utterance (the ATIS model of the RPS
paper)."""

from __future__ import annotations

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, *, vocabulary: int, slots: int, intents: int, embedding: int = 150, hidden: int = 300) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.slots = nn.Linear(hidden, slots)
        self.intents = nn.Linear(hidden, intents)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(slots of every word, intent): the intent is read off the last word's state."""
        states, _ = self.lstm(self.embedding(words))
        last = (words != 0).sum(1).clamp(min=1) - 1
        return self.slots(states), self.intents(states[torch.arange(len(words), device=words.device), last])
