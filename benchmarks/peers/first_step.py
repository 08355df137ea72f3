"""The peer of ../first_step.cpp: accelerate launch ... first_step.py FOLDER"""
import json
import os
import sys
import time

import torch
from accelerate import Accelerator
from common import finish, peak_memory

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = (torch.arange(64 * 8) % 7).float().view(64, 8)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (batch,) in loader:
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    break
now = time.monotonic()
with open(f"{sys.argv[1]}/{accelerator.process_index}.json", "w") as out:
    json.dump({"t": now, "rss": peak_memory(), "parent_rss": peak_memory(os.getppid()),
               "world": accelerator.num_processes}, out)
del model, optimizer, loader
finish(accelerator)
