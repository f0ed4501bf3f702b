"""The networks are what their names say: sizes as published, attention that does not look ahead."""

from __future__ import annotations

import pytest
import torch

from lossbench.workloads.errors import ModelError
from lossbench.workloads.training.models import MODELS, build
from lossbench.workloads.training.models.llama import SHAPES, Llama, Shape, angles, rotated
from lossbench.workloads.training.models.resnet import ResNet
from lossbench.workloads.training.tasks import judge_utterances, utterance_loss

pytestmark = pytest.mark.training
IMAGES = {"channels": 3, "side": 32, "classes": 10}
UTTERANCES = {"vocabulary": 900, "slots": ["O"] * 127, "intents": 26}


def size(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("depth", "published"), [(20, 0.27e6), (110, 1.7e6)])
def test_resnets_have_the_published_number_of_parameters(depth: int, published: float) -> None:
    assert size(ResNet(depth=depth)) == {20: 269_722, 110: 1_727_962}[depth]
    assert abs(size(ResNet(depth=depth)) / published - 1) < 0.03
    assert sum(isinstance(m, torch.nn.Conv2d | torch.nn.Linear) for m in ResNet(depth=depth).modules()) == depth


def test_a_resnet_maps_images_to_scores() -> None:
    assert ResNet(depth=20)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("name", SHAPES)
def test_every_llama_can_be_built_and_run_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = Llama(SHAPES[name])
        scores = model(torch.zeros(2, 16, dtype=torch.long))
    assert scores.shape == (2, 16, SHAPES[name].vocabulary)


def test_the_largest_llama_is_llama2_7b() -> None:
    with torch.device("meta"):
        assert size(Llama(SHAPES["llama_7b"])) == 6_738_415_616


def test_llama_6m_has_at_least_five_million_parameters_beside_its_embeddings() -> None:
    with torch.device("meta"):
        assert Llama(SHAPES["llama_6m"]).parameters_beside_embeddings() > 5_000_000


def test_a_llama_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = Llama(SHAPES["llama_200k"])
    tokens = torch.randint(0, 256, (1, 20))
    other = tokens.clone()
    other[0, 12:] = torch.randint(0, 256, (8,))
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[0, :12], after[0, :12])
    assert not torch.allclose(before[0, 12:], after[0, 12:])


def test_rotary_positions_depend_on_distance_alone() -> None:
    shape = Shape(width=32, layers=1, heads=4, kv_heads=4, hidden=8, context=64)
    turn = angles(shape)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(at: int, of: int) -> torch.Tensor:
        a = rotated(query, (turn[0][at : at + 1], turn[1][at : at + 1]))
        b = rotated(key, (turn[0][of : of + 1], turn[1][of : of + 1]))
        return (a * b).sum()

    torch.testing.assert_close(product(3, 1), product(40, 38))
    assert not torch.isclose(product(3, 1), product(3, 2))


def test_the_tagger_names_slots_and_intent_and_ignores_what_follows_the_last_word() -> None:
    torch.manual_seed(0)
    model = build("tagger", kind="utterances", about=UTTERANCES)
    words = torch.tensor([[5, 6, 7, 0, 0]])
    slots, intent = model(words)
    assert slots.shape == (1, 5, 127) and intent.shape == (1, 26)
    torch.testing.assert_close(intent, model(words[:, :3])[1])
    assert model.lstm.hidden_size == 300 and model.embedding.embedding_dim == 150 and model.lstm.num_layers == 1


def test_the_tagger_of_slots_alone_learns_and_is_judged_by_them() -> None:
    """The RPS paper's ATIS model has the sizes of CNTK's slot tagger."""
    model = build("tagger_slots", kind="utterances", about=UTTERANCES)
    words, slots = torch.tensor([[5, 6, 7, 0, 0]]), torch.tensor([[1, 2, 3, -100, -100]])
    batch = (words, slots, torch.tensor([4]))
    scores, intent = model(words)
    wanted = torch.nn.functional.cross_entropy(scores[0, :3], slots[0, :3])
    assert intent is None and model.lstm.hidden_size == 300 and model.embedding.embedding_dim == 150
    torch.testing.assert_close(utterance_loss(model, batch), wanted)
    found = judge_utterances([f"B-{n}" for n in range(127)], model, [batch])
    assert found["loss"] == pytest.approx(float(wanted)) and "intent_accuracy" not in found


def test_wrong_names_say_what_there_is() -> None:
    with pytest.raises(ModelError, match="no model 'resnet': known are mlp, linear, resnet20"):
        build("resnet", kind="images", about=IMAGES)
    with pytest.raises(ModelError, match="'tagger' is for utterances, this data is images: mlp"):
        build("tagger", kind="images", about=IMAGES)
    assert size(build("mlp", kind="images", about={"channels": 1, "side": 8, "classes": 10})) <= 50_000
    assert {kind for kind, _ in MODELS.values()} == {"images", "utterances", "text", "noise"}
