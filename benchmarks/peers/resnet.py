"""The peer of ../resnet.cpp, in the precision that `accelerate launch` was given: resnet.py [steps]

Network: conv3x3(3, 64), batch norm, ReLU; stages of two basic blocks with 64, 128, 256, 512 channels and strides
1, 2, 2, 2, with 1x1 convolution and batch norm on the shortcut where the shape changes; mean over the image;
Linear(512, 10). SGD of learning rate 0.01, momentum 0.9, weight decay 5e-4, batches of 64 for each process, four of them
in an epoch, read in order. Three steps to warm up, then those that are timed.
"""
import statistics
import sys
import time

import torch
from accelerate import Accelerator
from common import fast_loader, finish, init_parameters, inputs, labels, report
from torch import nn
from torch.nn.functional import relu

BATCH, WARM_UP = 64, 3
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 10


class Block(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.short = None
        if stride != 1 or c_in != c_out:
            self.short = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x):
        y = relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return relu(y + (x if self.short is None else self.short(x)), inplace=True)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(64)
        blocks, c_in = [], 64
        for c_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(c_in, c_out, stride), Block(c_out, c_out, 1)]
            c_in = c_out
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = self.blocks(relu(self.bn(self.conv(x)), inplace=True))
        return self.fc(x.mean((2, 3)))


accelerator = Accelerator(cpu=True)
model = init_parameters(ResNet18())
count = BATCH * 4 * accelerator.num_processes
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
loader = fast_loader(inputs(count, 3, 32, 32), labels(count), batch_size=BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loss_function = nn.CrossEntropyLoss()
model.train()

seconds, losses = [], []
while len(seconds) < WARM_UP + STEPS:
    start = time.perf_counter()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = loss_function(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
        if len(seconds) == WARM_UP + STEPS:
            break
losses = accelerator.reduce(torch.stack(losses), "mean").tolist()
if accelerator.is_main_process:
    report(rate=BATCH * accelerator.num_processes / statistics.median(seconds[WARM_UP:]), losses=losses)
del model, optimizer, loader, loss
finish(accelerator)
