"""Writes resnet.json: names, shapes and values of residual networks, computed by plain PyTorch in float64.

    python generate.py        (needs torch only; takes about half a minute)

Everything is a formula that resnet_test.cpp repeats:
  u(k, s)     a number in [0, 1) from a 32-bit hash of the position k and the seed s
  state       entry number s of the state dict, in its order, is filled from seed s; see fill()
  images      2 * u(k, 9001) - 1
  labels      0, 1, 2, ...
  projection  sum over k of t[k] * (2 * u(k, 9002) - 1): one number that notices any change of a tensor
"""
import json
import math
import os

import torch
from torch import nn
from torch.nn import functional as F


def u(count, seed):
    mask = 0xFFFFFFFF
    h = (torch.arange(count, dtype=torch.int64) * 0x85EBCA6B + seed * 0x27D4EB2F + 0x165667B1) & mask
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        h = ((h ^ (h >> shift)) * factor) & mask
    h = h ^ (h >> 15)
    return (h >> 8).to(torch.float64) * 2.0**-24


def signed(shape, seed):
    return (2 * u(math.prod(shape), seed) - 1).reshape(shape)


def projection(tensor):
    return float((tensor.detach().double() * signed(tuple(tensor.shape), 9002)).sum())


@torch.no_grad()
def fill(model):
    for seed, (name, tensor) in enumerate(model.state_dict().items()):
        kind = name.rsplit(".", 1)[1]
        if tensor.dim() >= 2:  # variance 1 / fan-in
            tensor.copy_(signed(tuple(tensor.shape), seed) * math.sqrt(3.0 * tensor.shape[0] / tensor.numel()))
        elif kind in ("weight", "running_var"):
            tensor.copy_(0.75 + 0.5 * u(tensor.numel(), seed))
        elif kind in ("bias", "running_mean"):
            tensor.copy_(0.1 * signed((tensor.numel(),), seed))
        else:  # num_batches_tracked
            tensor.fill_(seed)


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Basic(nn.Module):
    expansion = 1

    def __init__(self, inputs, width, stride, shortcut):
        super().__init__()
        self.conv1 = conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, width, stride, shortcut):
        super().__init__()
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class Padding(nn.Module):
    """The parameter-free shortcut: every second pixel, zero channels half before and half behind."""

    def __init__(self, channels):
        super().__init__()
        self.channels = channels

    def forward(self, x):
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.channels // 2, self.channels // 2))


class ResNet(nn.Module):
    def __init__(self, block, blocks, width=64, small=False, padded=False, head="fc", classes=10, channels=3):
        super().__init__()
        self.small, self.head, self.stages = small, head, len(blocks)
        self.conv1 = conv(channels, width, 3) if small else conv(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, count in enumerate(blocks):
            stride, outputs = (1 if stage == 0 else 2), width * block.expansion
            shortcut = None
            if stride != 1 or inputs != outputs:
                shortcut = (Padding(outputs - inputs) if padded else
                            nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)))
            layers = [block(inputs, width, stride, shortcut)]
            layers += [block(outputs, width, 1, None) for _ in range(count - 1)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
            inputs, width = outputs, 2 * width
        setattr(self, head, nn.Linear(inputs, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if not self.small:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return getattr(self, self.head)(F.adaptive_avg_pool2d(x, 1).flatten(1))


def reference(make, shape):
    torch.manual_seed(5)
    model = make()
    out = {"state": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
           "seeded": {name: projection(p) for name, p in model.named_parameters() if p.dim() > 1}}
    model.double()
    fill(model)
    images = signed(shape, 9001)
    with torch.no_grad():
        out["eval"] = model.eval()(images).flatten().tolist()
    logits = model.train()(images)
    F.cross_entropy(logits, torch.arange(shape[0])).backward()
    out["images"] = list(shape)
    out["train"] = logits.flatten().tolist()
    out["gradients"] = {name: projection(p.grad) for name, p in model.named_parameters()}
    out["buffers"] = {name: projection(b) for name, b in model.named_buffers()}
    return out


MODELS = {
    "ResNet18": (lambda: ResNet(Basic, (2, 2, 2, 2)), (2, 3, 64, 64)),
    "ResNet34": (lambda: ResNet(Basic, (3, 4, 6, 3)), (2, 3, 64, 64)),
    "ResNet50": (lambda: ResNet(Bottleneck, (3, 4, 6, 3)), (2, 3, 64, 64)),
    "ResNet18 for small images": (lambda: ResNet(Basic, (2, 2, 2, 2), small=True, channels=1), (4, 1, 32, 32)),
    "ResNet20": (lambda: ResNet(Basic, (3, 3, 3), 16, True, True, "linear"), (4, 3, 32, 32)),
    "ResNet56": (lambda: ResNet(Basic, (9, 9, 9), 16, True, True, "linear"), (4, 3, 32, 32)),
}


def main():
    torch.set_num_threads(1)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "resnet.json")
    with open(path, "w") as file:
        models = [f'"{name}": {{\n' + ",\n".join(f'  "{key}": {json.dumps(value, separators=(",", ":"))}'
                                                for key, value in reference(make, shape).items()) + "\n}"
                  for name, (make, shape) in MODELS.items()]
        file.write("{\n" + ",\n".join(models) + "\n}\n")


if __name__ == "__main__":
    main()
