"""The peer of ../mlp.cpp, on one process or several: python mlp.py as_written|tuned

64-128-128-10 network with ReLU, cross-entropy, Adam of learning rate 1e-3, batches of 32 for each process, 200 steps an
epoch, read in order; one epoch to warm up and ten that are timed. Batch b of rank r of W holds the samples from
(b*W + r) * 32.

as_written  what Accelerate's documentation shows
tuned       a fused Adam, a data set that makes whole batches, and DDP with bucket views and a static graph
"""
import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from common import absolute_sum, fast_loader, finish, init_parameters, inputs, labels, report
from torch import nn

BATCH, STEPS, EPOCHS = 32, 200, 10

tuned = {"as_written": False, "tuned": True}[sys.argv[1]]
ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=tuned, static_graph=tuned)
accelerator = Accelerator(cpu=True, kwargs_handlers=[ddp])
count = BATCH * STEPS * accelerator.num_processes
x_all, y_all = inputs(count, 64), labels(count)
net = init_parameters(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=tuned or None)
if tuned:
    loader = fast_loader(x_all, y_all, batch_size=BATCH)
else:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x_all, y_all), batch_size=BATCH)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
loss_function = nn.CrossEntropyLoss()


def epoch():
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = loss_function(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.reduce(loss.detach(), "mean")


epoch()
start = time.perf_counter()
for _ in range(EPOCHS):
    loss = epoch()
seconds = time.perf_counter() - start
with torch.no_grad():
    over_all = loss_function(net(x_all), y_all)
if accelerator.is_main_process:
    report(rate=EPOCHS * STEPS / seconds, last_step_loss=float(loss), dataset_loss=float(over_all),
           abs_sum=absolute_sum(net))
del model, optimizer, loader
finish(accelerator)
