"""What the peers' programs share: the data and first weights of ../formulas.h, and a process's memory.

FORMULAS
  u(k, s)  uint32 h = k + s*0x9E3779B9; h ^= h>>16; h *= 0x85EBCA6B; h ^= h>>13; h *= 0xC2B2AE35; h ^= h>>16;
           u = float(h >> 8) * 2^-24, in [0, 1)
  inputs   x.flat[k] = 2*u(k, 1001) - 1
  labels   y[i] = i % classes
  weights  of parameter s in the model's order: dim >= 2: (2*u(k, s) - 1) * sqrt(6 / fan_in), fan_in = numel / shape[0];
           else 1 if its name ends with "weight" and 0 if not
"""
import json
import math

import numpy as np
import torch

INPUT_SEED = 1001


def uniform(count, seed):
    k = np.arange(count, dtype=np.uint64).astype(np.uint32)
    h = k + np.uint32((seed * 0x9E3779B9) & 0xFFFFFFFF)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return (h >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def filled(shape, seed, bound):
    values = (np.float32(2) * uniform(math.prod(shape), seed) - np.float32(1)) * np.float32(bound)
    return torch.from_numpy(values).view(shape)


def inputs(*shape):
    return filled(shape, INPUT_SEED, 1.0)


def labels(count, classes=10):
    return torch.arange(count) % classes


@torch.no_grad()
def init_parameters(model):
    for ordinal, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() >= 2:
            fan_in = parameter.numel() // parameter.shape[0]
            parameter.copy_(filled(tuple(parameter.shape), ordinal, math.sqrt(6.0 / fan_in)))
        else:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return model


@torch.no_grad()
def absolute_sum(model):
    return float(sum(p.double().abs().sum() for p in model.parameters()))


class BatchedTensors(torch.utils.data.TensorDataset):
    """Indexes its tensors with a whole batch of indices at once: PyTorch's documented way to go fast."""

    def __getitems__(self, indices):
        return tuple(t[indices] for t in self.tensors)


def fast_loader(*tensors, batch_size):
    return torch.utils.data.DataLoader(BatchedTensors(*tensors), batch_size=batch_size, collate_fn=lambda batch: batch)


def peak_memory(process="self"):
    """MiB."""
    with open(f"/proc/{process}/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def finish(accelerator):
    """Ends a run. Callers delete their own references to what was prepared before: torch 2.13.0 can hang when a DDP
    model outlives its Gloo group, whose thread is joined with the interpreter's lock held."""
    accelerator.free_memory()
    accelerator.end_training()


def report(**figures):
    print(json.dumps(figures), flush=True)
