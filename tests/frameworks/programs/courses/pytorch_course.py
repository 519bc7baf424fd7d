"""What a course does with PyTorch: data, models, training, saving, and what lies beside."""

from __future__ import annotations

import copy
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lessons import Lessons
from torch import nn
from torch.nn import functional
from torch.utils import data

DEVICE = torch.device(sys.argv[1])
lesson = Lessons()


def numbers(*shape: int, seed: int = 0) -> Any:
    """Return normal numbers that are the same on every device."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def labels(count: int, classes: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, count))


class Pictures(data.Dataset[Any]):
    """Pictures of 4 classes, made as they are asked for."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return numbers(3, 16, 16, seed=index) + index % 4, index % 4


def trained(model: Any, optimizer: Any, batches: Any, loss: Any = functional.cross_entropy) -> list[float]:
    """Return the loss of each batch."""
    losses = []
    for x, y in batches:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model(x.to(DEVICE, non_blocking=True)), y.to(DEVICE, non_blocking=True))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def small() -> Any:
    torch.manual_seed(0)
    convolved = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolved, nn.Flatten(), nn.Linear(8 * 64, 4)).to(DEVICE)


@lesson
def a_loader_with_workers_and_pinned_memory() -> list[float]:
    loader = data.DataLoader(
        Pictures(), 16, num_workers=2, pin_memory=DEVICE.type == "cuda", persistent_workers=True
    )
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    return [loss for _ in range(3) for loss in trained(model, optimizer, loader)]


class Basic(nn.Module):
    """ResNet-18's block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Any) -> Any:
        around = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + around)


def resnet(width: int = 16) -> Any:
    torch.manual_seed(0)
    parts: list[Any] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    parts.append(nn.MaxPool2d(3, 2, 1))
    inputs = width
    for stage in range(4):
        for block in range(2):
            parts.append(Basic(inputs, width << stage, 2 if stage and not block else 1))
            inputs = width << stage
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model.to(DEVICE)


@lesson
def resnet_18_with_a_schedule_and_channels_last() -> list[float]:
    model = resnet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.002, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.004, total_steps=6)
    losses = []
    for step in range(5):
        losses += trained(model, optimizer, [(numbers(8, 3, 64, 64, seed=step), labels(8, 10, step))])
        schedule.step()
    model.eval()
    with torch.inference_mode():
        return [*losses, model(numbers(2, 3, 64, 64).to(DEVICE)).square().mean().item()]


@lesson
def autocast_and_a_scaled_gradient() -> list[float]:
    model, scaler = small(), torch.amp.GradScaler(DEVICE.type, enabled=DEVICE.type == "cuda")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for step in range(6):
        x, y = numbers(16, 3, 16, 16, seed=step).to(DEVICE), labels(16, 4, step).to(DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@lesson
def a_checkpoint_from_which_training_goes_on() -> list[float]:
    def batches(first: int) -> list[Any]:
        return [(numbers(8, 3, 16, 16, seed=first + i), labels(8, 4, first + i)) for i in range(4)]

    model = small()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = trained(model, optimizer, batches(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kept.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}, path)
        kept = torch.load(path, map_location=DEVICE, weights_only=True)
        on_host = torch.load(path, map_location="cpu", weights_only=True)
    assert on_host["model"]["0.weight"].device.type == "cpu"
    losses += trained(model, optimizer, batches(4))
    other = small()
    again = torch.optim.Adam(other.parameters(), 1e-3)
    other.load_state_dict(kept["model"])
    again.load_state_dict(kept["optimizer"])
    more = trained(other, again, batches(4))
    assert np.allclose(more, losses[4:], atol=1e-5), (more, losses)
    return losses


@lesson
def recomputed_activations() -> list[float]:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layers = nn.ModuleList(
        [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32)) for _ in range(4)]
    ).to(DEVICE)
    x = numbers(16, 32).to(DEVICE).requires_grad_()
    y = x
    for layer in layers:
        y = checkpoint(layer, y, use_reentrant=False)
    y.square().mean().backward()
    return [x.grad.norm().item(), *(one.grad.norm().item() for one in layers.parameters())]


@lesson
def words_of_different_lengths_through_an_lstm() -> list[float]:
    torch.manual_seed(0)
    lengths = torch.tensor([12, 9, 7, 3])
    embedding = nn.Embedding(50, 16, padding_idx=0).to(DEVICE)
    lstm = nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True, dropout=0.0).to(DEVICE)
    gru, last = nn.GRU(48, 8, batch_first=True).to(DEVICE), nn.Linear(8, 2).to(DEVICE)
    parameters = [*embedding.parameters(), *lstm.parameters(), *gru.parameters(), *last.parameters()]
    optimizer = torch.optim.RMSprop(parameters, 1e-3)
    losses = []
    for step in range(4):
        words = labels(48, 50, step).reshape(4, 12).to(DEVICE)
        packed = nn.utils.rnn.pack_padded_sequence(embedding(words), lengths, batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        loss = functional.cross_entropy(last(gru(out)[1][-1]), labels(4, 2, step).to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@lesson
def a_transformer_with_masks() -> list[float]:
    torch.manual_seed(0)
    model = nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True).to(DEVICE)
    source, target = numbers(4, 10, 32).to(DEVICE), numbers(4, 7, 32, seed=1).to(DEVICE)
    causal = nn.Transformer.generate_square_subsequent_mask(7, device=DEVICE)
    padding = torch.zeros(4, 10, dtype=torch.bool, device=DEVICE)
    padding[:, 8:] = True
    out = model(source, target, tgt_mask=causal, src_key_padding_mask=padding, tgt_is_causal=True)
    out.square().mean().backward()
    found = [out.norm().item(), *(one.grad.norm().item() for one in list(model.parameters())[:12])]
    model.eval()
    with torch.no_grad():  # the fast path
        found.append(model.encoder(source, src_key_padding_mask=padding)[:, :8].norm().item())
    dropped = functional.scaled_dot_product_attention(
        *(numbers(2, 4, 16, 16, seed=i).to(DEVICE) for i in range(3)), dropout_p=0.5
    )
    assert torch.isfinite(dropped).all()
    return found


@lesson
def gradients_of_functions() -> list[float]:
    from torch.func import functional_call, grad, hessian, jacrev, vmap

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).to(DEVICE)
    weights = {name: one.detach() for name, one in model.named_parameters()}

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return (functional_call(model, weights, (x,)).squeeze() - y) ** 2

    x, y = numbers(9, 6).to(DEVICE), numbers(9).to(DEVICE)
    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    curved = hessian(lambda v: (v.sin() * v[0]).sum())(x[0])
    slopes = jacrev(lambda v: model(v))(x[0])
    return [one.norm().item() for one in (*each.values(), curved, slopes)]


class Rounded(torch.autograd.Function):
    """Rounds, and lets the gradient through."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(context: Any, slope: Any) -> Any:  # type: ignore[override]
        (x,) = context.saved_tensors
        return slope * (x.abs() < 1)


@lesson
def hooks_own_functions_and_second_gradients() -> list[float]:
    x = numbers(20).to(DEVICE).requires_grad_()
    with torch.autograd.detect_anomaly(check_nan=True):
        Rounded.apply(x * 2).pow(2).sum().backward()
    found, seen = [x.grad.norm().item()], []
    model = small()
    model[0].register_forward_hook(lambda _m, _i, out: seen.append(out.norm().item()))
    model[0].register_full_backward_hook(lambda _m, _i, out: seen.append(out[0].norm().item()))
    real = numbers(4, 3, 16, 16).to(DEVICE).requires_grad_()
    (slope,) = torch.autograd.grad(model(real).sum(), real, create_graph=True)
    ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean().backward()  # as WGAN-GP does
    return [*found, *seen, *(one.grad.norm().item() for one in model.parameters() if one.grad is not None)]


@lesson
def two_networks_against_each_other() -> list[float]:
    torch.manual_seed(0)
    up = nn.Sequential(
        nn.ConvTranspose2d(16, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
    ).to(DEVICE)  # fmt: skip
    norm = nn.utils.parametrizations.spectral_norm
    down = nn.Sequential(
        norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2, True), nn.InstanceNorm2d(8, affine=True),
        nn.Conv2d(8, 1, 4), nn.Flatten(0),
    ).to(DEVICE)  # fmt: skip
    one, other = (torch.optim.Adam(part.parameters(), 2e-4, (0.5, 0.999)) for part in (up, down))
    loss, losses = nn.BCEWithLogitsLoss(), []
    for step in range(4):
        real, noise = numbers(8, 3, 8, 8, seed=step).to(DEVICE), numbers(8, 16, 1, 1, seed=step).to(DEVICE)
        made = up(noise)
        other.zero_grad()
        first = loss(down(real), torch.ones(8, device=DEVICE)) + loss(
            down(made.detach()), torch.zeros(8, device=DEVICE)
        )
        first.backward()
        other.step()
        one.zero_grad()
        second = loss(down(made), torch.ones(8, device=DEVICE))
        second.backward()
        one.step()
        losses += [first.item(), second.item()]
    return losses


@lesson
def models_as_scripts_and_exported_programs() -> list[float]:
    x = numbers(2, 3, 16, 16).to(DEVICE)
    apart = nn.Conv2d(3, 6, 3, padding=1, groups=3)  # filters of each channel's own
    model = nn.Sequential(apart, nn.Conv2d(6, 3, 1), small()).to(DEVICE).eval()
    wanted = model(x)
    traced = torch.jit.trace(model, x)
    kept = io.BytesIO()
    torch.jit.save(traced, kept)
    kept.seek(0)
    again = torch.jit.load(kept, map_location=DEVICE)
    exported = torch.export.export(model, (x,)).module()
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(DEVICE))
    assert scripted(numbers(2, 4).to(DEVICE)).shape == (2, 4)
    for other in (traced, again, exported):
        torch.testing.assert_close(other(x), wanted)
    again(x).square().sum().backward()
    return [wanted.norm().item(), *(one.grad.norm().item() for one in again.parameters())]


@lesson
def a_compiled_training() -> list[float]:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = torch.compile(model)
    return trained(step, optimizer, [(numbers(8, 3, 16, 16, seed=i), labels(8, 4, i)) for i in range(3)])


@lesson
def a_compiled_model_with_less_overhead() -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(DEVICE)
    compiled = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        return [compiled(numbers(16, 32, seed=i).to(DEVICE)).norm().item() for i in range(4)]


@lesson
def optimizers_and_averages() -> list[float]:
    found = []
    for make in (
        lambda p: torch.optim.Adam(p, 1e-2, fused=DEVICE.type == "cuda"),
        lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True, foreach=True),
        lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, fused=DEVICE.type == "cuda"),
        lambda p: torch.optim.Adagrad(p, 1e-2),
        lambda p: torch.optim.NAdam(p, 1e-2),
        lambda p: torch.optim.Adam(p, 1e-2, capturable=DEVICE.type == "cuda"),
    ):
        torch.manual_seed(0)
        model = nn.Linear(10, 3).to(DEVICE)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = make(model.parameters())  # type: ignore[no-untyped-call]
        for step in range(3):
            found += trained(model, optimizer, [(numbers(16, 10, seed=step), labels(16, 3, step))])
            average.update_parameters(model)
        found.append(average.module.weight.norm().item())
    weights = numbers(5).to(DEVICE).requires_grad_()
    searching = torch.optim.LBFGS([weights], line_search_fn="strong_wolfe")

    def closure() -> Any:
        searching.zero_grad()
        loss = (weights**4).sum() + (weights - 1).square().sum()
        loss.backward()
        return loss

    searching.step(closure)
    return [*found, closure().item()]


@lesson
def losses_and_layers_of_other_kinds() -> list[float]:
    x = numbers(6, 8, 12, 12).to(DEVICE).requires_grad_()
    flow = functional.affine_grid(
        torch.eye(2, 3).repeat(6, 1, 1).to(DEVICE) * 0.8, [6, 8, 10, 10], align_corners=False
    )
    parts = [
        functional.grid_sample(x, flow, align_corners=False),
        functional.interpolate(x, scale_factor=1.5, mode="bicubic"),
        functional.fold(functional.unfold(x, 3, padding=1), (12, 12), 3, padding=1),
        nn.GroupNorm(4, 8).to(DEVICE)(x), nn.PixelShuffle(2)(x), functional.adaptive_max_pool2d(x, 5),
        nn.Conv3d(8, 4, 3, padding=1, groups=2, device=DEVICE)(x[:, :, None].repeat(1, 1, 3, 1, 1)) * 0 + 1,
        functional.conv2d(x, numbers(8, 1, 3, 3).to(DEVICE), padding="same", groups=8, dilation=2),
        functional.hardswish(x), functional.mish(x), functional.lp_pool2d(x.abs(), 2, 3),
    ]  # fmt: skip
    sum(part.square().mean() for part in parts).backward()
    scores = numbers(12, 4, 9, seed=2).to(DEVICE).log_softmax(-1).requires_grad_()
    spoken = functional.ctc_loss(
        scores, labels(20, 8).reshape(4, 5).add(1), torch.full((4,), 12), torch.tensor([5, 4, 3, 5])
    )
    spoken.backward()
    return [x.grad.norm().item(), scores.grad.norm().item(), spoken.item()]


@lesson
def matrices_transforms_and_indices() -> list[float]:
    a = numbers(20, 20).to(DEVICE)
    spd = a @ a.T + 20 * torch.eye(20, device=DEVICE)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.ones(3), (20, 20)).to(DEVICE)
    found = [
        torch.linalg.solve(spd, a), torch.linalg.cholesky(spd), torch.linalg.svdvals(a), torch.linalg.qr(a)[1].abs(),
        torch.linalg.eigh(spd)[0], torch.fft.rfft2(a).abs(), torch.fft.ifft(torch.fft.fft(a)).real, sparse @ a,
        torch.einsum("ij,kj->ik", a, a), torch.cdist(a, a), a.topk(3)[0], a.sort()[0], a.cumsum(0), a.median(0)[0],
        torch.bincount(labels(50, 9).to(DEVICE)).float(), a.unique().float(), torch.histc(a, 10), a.kthvalue(4)[0],
        a.scatter_add(0, labels(20, 20).to(DEVICE)[None], a[:1]), torch.where(a > 0, a, 0.0), a[a > 0.5],
        a.index_select(0, labels(7, 20).to(DEVICE)), torch.searchsorted(a.sort()[0], a).float(), a.roll(3, 1),
        torch.combinations(a[0, :6]), torch.block_diag(a, a), torch.kron(a[:3, :3], a[:3, :3]), a.quantile(0.3),
    ]  # fmt: skip
    return [one.double().norm().item() for one in found]


@lesson
def copies_of_models_and_half_precision() -> list[float]:
    model = small().eval()
    twin = copy.deepcopy(model).half() if DEVICE.type == "cuda" else copy.deepcopy(model)
    x = numbers(2, 3, 16, 16).to(DEVICE)
    own = next(twin.parameters()).dtype
    out = nn.DataParallel(twin)(x.to(own)) if DEVICE.type == "cuda" else twin(x)
    torch.testing.assert_close(out.float(), model(x), rtol=1e-2, atol=1e-2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    moved = model.to("cpu").to(DEVICE)
    torch.use_deterministic_algorithms(False)
    return [moved(x).norm().item(), sum(one.numel() for one in model.parameters())]


@lesson
def a_profile_and_what_memory_is_used() -> list[float]:
    from torch.profiler import ProfilerActivity, profile, record_function

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if DEVICE.type == "cuda" else [])
    model, x = small(), numbers(4, 3, 16, 16).to(DEVICE)
    with (
        profile(activities=kinds, profile_memory=True, record_shapes=True) as seen,
        record_function("forward"),
    ):
        model(x)
    assert "aten::conv2d" in seen.key_averages().table(row_limit=50)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        with torch.cuda.nvtx.range("lesson"):
            model(x)
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() > 0
        assert "Allocated memory" in torch.cuda.memory_summary()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        model(x)
        end.record()
        end.synchronize()
        assert begin.elapsed_time(end) >= 0
        assert torch.cuda.get_device_properties(0).total_memory > 0
    return [1.0]


if __name__ == "__main__":
    lesson.run(lambda: torch.manual_seed(0))
