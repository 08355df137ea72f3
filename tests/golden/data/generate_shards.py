"""Writes batch_sampler_shard.json beside this file, from Accelerate itself.

Needs torch and accelerate in the running Python; run as
    python generate_shards.py
Each case lists, for every process, the sample numbers of each of its batches over `size` samples in order. With
split_batches the batch size is that of the whole step. The values are Accelerate 1.15.0's with PyTorch 2.13.0.
"""
import itertools
import json
import pathlib

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, SequentialSampler

SIZES = [0, 1, 2, 3, 5, 7, 8, 9, 10, 12, 16, 17, 23, 24, 25]
BATCH_SIZES = [1, 3, 4]
PROCESSES = [1, 2, 3, 4]


def shards(size, batch_size, processes, drop_last, split_batches, even_batches):
    for rank in range(processes):
        batches = BatchSampler(SequentialSampler(range(size)), batch_size, drop_last)
        yield [list(b) for b in BatchSamplerShard(batches, processes, rank, split_batches, even_batches)]


def main():
    cases = []
    names = ("size", "batch_size", "processes", "drop_last", "split_batches", "even_batches")
    for values in itertools.product(SIZES, BATCH_SIZES, PROCESSES, (False, True), (False, True), (True, False)):
        case = dict(zip(names, values))
        if case["split_batches"] and case["batch_size"] % case["processes"]:
            continue
        cases.append(case | {"shards": list(shards(**case))})
    about = (
        "Which sample indices each process gets in each of its batches, for a sequential sampler over `size` samples. "
        "With split_batches the batch_size is that of the whole step."
    )
    with open(pathlib.Path(__file__).with_name("batch_sampler_shard.json"), "w") as file:
        file.write('{"about": ' + json.dumps(about) + ',\n "cases": [\n')
        file.write(",\n".join(json.dumps(case) for case in cases))
        file.write("\n]}\n")


if __name__ == "__main__":
    main()
