"""A small network learns a parity in PyTorch; then it asks for more memory than the slice has, and goes on."""

import json

import torch

torch.manual_seed(0)
device = torch.device("cuda")
bits = torch.randint(0, 2, (4096, 6), device=device).float()
wanted = bits.sum(1) % 2
model = torch.nn.Sequential(torch.nn.Linear(6, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(300):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(bits)[:, 0], wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
total = torch.cuda.mem_get_info()[1]
try:
    torch.empty(total + 1, dtype=torch.uint8, device=device)
    too_much = "given"
except torch.OutOfMemoryError:
    too_much = "OutOfMemoryError"
print(
    json.dumps(
        {
            "loss_at_the_beginning": losses[0],
            "loss_at_the_end": losses[-1],
            "total_bytes": total,
            "too_much": too_much,
            "afterwards": "works" if torch.ones(9, device=device).sum().item() == 9 else "broken",
        }
    )
)
