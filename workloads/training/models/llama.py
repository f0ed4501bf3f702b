"""A LLaMA-style decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention. Sizes by name, up to LLaMA2-7B."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int  # of the feed-forward part
    vocabulary: int = 256
    context: int = 1024


# Names tell non-embedding parameters, from what two cores can train to LLaMA2-7B itself.
SHAPES = {
    "llama_25k": Shape(width=32, layers=2, heads=4, kv_heads=2, hidden=96),
    "llama_200k": Shape(width=64, layers=4, heads=4, kv_heads=2, hidden=192),
    "llama_1m": Shape(width=128, layers=6, heads=4, kv_heads=2, hidden=352),
    "llama_6m": Shape(width=256, layers=8, heads=8, kv_heads=4, hidden=688),
    "llama_25m": Shape(width=512, layers=8, heads=8, kv_heads=4, hidden=1376),
    "llama_85m": Shape(width=768, layers=12, heads=12, kv_heads=12, hidden=2048),
    "llama_1b": Shape(width=2048, layers=22, heads=32, kv_heads=4, hidden=5632, vocabulary=32000, context=2048),
    "llama_7b": Shape(width=4096, layers=32, heads=32, kv_heads=32, hidden=11008, vocabulary=32000, context=4096),
}


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = shape.heads, shape.kv_heads, shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.heads * self.size, bias=False)
        self.key = nn.Linear(shape.width, shape.kv_heads * self.size, bias=False)
        self.value = nn.Linear(shape.width, shape.kv_heads * self.size, bias=False)
        self.out = nn.Linear(shape.heads * self.size, shape.width, bias=False)

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, length, _ = x.shape
        query = rotated(self.query(x).view(batch, length, self.heads, self.size), turn).transpose(1, 2)
        key = rotated(self.key(x).view(batch, length, self.kv_heads, self.size), turn).transpose(1, 2)
        value = self.value(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        times = self.heads // self.kv_heads  # several queries share a key
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), turn)
        y = self.feed_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    stackable = False  # torch.func has no batching rule for attention on a CPU: it would go one by one, and slower

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        cosine, sine = angles(shape)
        self.cosine: torch.Tensor
        self.sine: torch.Tensor
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):  # as many residuals as layers add up
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        turn = (self.cosine[:length], self.sine[:length])
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turn)
        return self.head(self.norm(x))

    def parameters_beside_embeddings(self) -> int:
        outer = self.embedding.weight.numel() + self.head.weight.numel()
        return sum(p.numel() for p in self.parameters()) - outer


def angles(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    size = shape.width // shape.heads
    frequencies = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    turns = torch.arange(shape.context, dtype=torch.float32)[:, None] * frequencies
    return turns.cos(), turns.sin()


def rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """[batch, length, heads, size]: pairs of elements turned by an angle that grows with the position."""
    cosine, sine = (part[None, :, None, :].to(x.dtype) for part in turn)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)
