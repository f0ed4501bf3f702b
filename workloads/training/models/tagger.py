"""One-layer LSTM that names the slot of every word and, unless it is told not to, the intent of the utterance.

The RPS paper's ATIS model has the sizes of CNTK's own ATIS tutorial (embedding 150, LSTM 300), which tags slots."""

from __future__ import annotations

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, *, vocabulary: int, slots: int, intents: int, embedding: int = 150, hidden: int = 300) -> None:
        """`intents`: how many there are to tell apart; 0: slots alone."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.slots = nn.Linear(hidden, slots)
        self.intents = nn.Linear(hidden, intents) if intents else None

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(slots of every word, intent): the intent is read off the last word's state."""
        states, _ = self.lstm(self.embedding(words))
        if self.intents is None:
            return self.slots(states), None
        last = (words != 0).sum(1).clamp(min=1) - 1
        return self.slots(states), self.intents(states[torch.arange(len(words), device=words.device), last])
