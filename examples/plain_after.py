"""An ordinary PyTorch script with geminid. ``plain_before.py`` is the same without."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

torch.manual_seed(0)
inputs = torch.randn(4096, 10)
targets = torch.sin(inputs.sum(1, keepdim=True)) + 0.1 * torch.randn(4096, 1)
model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)

run = geminid.init()
model, optimizer, loader = run.prepare(model, optimizer, loader, max_batch_size=512)
for epoch in run.epochs(15):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}", flush=True)
