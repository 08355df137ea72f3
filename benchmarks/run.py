#!/usr/bin/env python3
"""Runs hasten and its peers in turns and compares them: `make bench [ONLY=name,...]`.

Each benchmark says what both sides must agree on, which is checked before any ratio is printed. A ratio says how many
times better hasten is: the median of the rounds' ratios, with the least and the greatest. Other load on the machine
falls on both sides of a round alike. A table goes to standard error, a line of JSON for each row to standard output.
"""
import argparse
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent


class Failed(Exception):
    pass


class Tools:
    """The programs of both sides, and how each is run."""

    def __init__(self, build, python):
        self.bin = pathlib.Path(build) / "bin"
        self.python = pathlib.Path(python)

    def run(self, command, threads, environment=None):
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1",
                   **(environment or {}))
        done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise Failed(f"{' '.join(map(str, command))} returned {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def ours(self, program, *args, processes=1, threads=1):
        command = [self.bin / f"bench_{program}", *args]
        if processes > 1:
            command = [self.bin / "hasten", "launch", "--cpu", "--num-processes", processes, *command]
        return self.run(command, threads)

    def peer(self, script, *args, processes=1, threads=1, precision="no"):
        """`accelerate launch --cpu --num_processes 2` starts one process (accelerate 1.15.0); with --multi_gpu it starts
        two, and ACCELERATE_USE_CPU makes them meet over Gloo."""
        command = [self.python.parent / "accelerate", "launch", "--num_machines", 1, "--num_processes", processes,
                   "--mixed_precision", precision, "--dynamo_backend", "no", "--num_cpu_threads_per_process", threads]
        command += ["--cpu"] if processes == 1 else ["--multi_gpu", "--main_process_port", 0]
        return self.run([*command, HERE / "peers" / script, *args], threads, {"ACCELERATE_USE_CPU": "true"})


def figures(output):
    """The JSON object that a program printed last, behind the `[rank]` that a launcher may put before it."""
    lines = [line[line.index("{"):] for line in output.splitlines() if "{" in line]
    if not lines:
        raise Failed(f"no figures in the output:\n{output[-2000:]}")
    return json.loads(lines[-1])


def agree(what, ours, peer, tolerance):
    if not all(math.isclose(a, b, rel_tol=tolerance) for a, b in zip(ours, peer, strict=True)):
        raise Failed(f"the sides did different work: {what} is {ours} here and {peer} there "
                     f"(allowed: {tolerance:g} relative)")


def row(name, ours, peer, unit, target, less_is_better=False):
    """One comparison of the rounds' figures."""
    ratios = sorted(p / o if less_is_better else o / p for o, p in zip(ours, peer, strict=True))
    return {"name": name, "ours": statistics.median(ours), "peer": statistics.median(peer), "unit": unit,
            "ratio": statistics.median(ratios), "spread": [ratios[0], ratios[-1]], "rounds": len(ratios),
            "target": target}


def rounds(count, *sides):
    """Calls the sides in turns; returns each one's results."""
    return zip(*[[side() for side in sides] for _ in range(count)])


def mlp_rows(tools, name, processes, targets):
    """Accelerate as written and tuned against hasten. The tuned one steps by the same kernel; Adam as written rounds
    differently, which 2,200 steps carry into the fourth digit."""
    sides = list(rounds(5,
                        lambda: figures(tools.ours("mlp", "hasten", processes=processes)),
                        lambda: figures(tools.peer("mlp.py", "as_written", processes=processes)),
                        lambda: figures(tools.peer("mlp.py", "tuned", processes=processes))))
    ours, *peers = sides
    for peer, tolerance in zip(peers, (5e-3, 1e-5)):
        for key in ("dataset_loss", "last_step_loss", "abs_sum"):
            agree(key, [ours[0][key]], [peer[0][key]], tolerance)
    for way, peer, target in zip(("as written", "tuned"), peers, targets):
        yield row(f"{name}: Accelerate {way}", [o["rate"] for o in ours], [p["rate"] for p in peer], "steps/s", target)


def mlp(tools):
    """The cost of the loop: a small network, one process, one thread."""
    yield from mlp_rows(tools, "mlp", 1, (5, 4))
    ours, peer = (figures(tools.ours("mlp", way)) for way in ("hasten", "libtorch"))
    for key in ("dataset_loss", "abs_sum"):
        agree(key, [ours[key]], [peer[key]], 1e-6)
    alternated = figures(tools.ours("mlp", "added"))
    median, low, high = alternated["added"]
    yield {"name": "mlp: added to a LibTorch loop", "ours": alternated["hasten"][0], "peer": alternated["by_hand"][0],
           "unit": "us/step", "ratio": alternated["by_hand"][0] / alternated["hasten"][0], "added": median,
           "added_quartiles": [low, high], "rounds": alternated["rounds"], "target": "<= 4 us added"}


def exact(tools):
    """The instructions that accumulation, loss scaling, clipping and metrics add to the same work done by a LibTorch
    loop, counted by valgrind's callgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Failed("valgrind is not installed. Install it (apt-get install valgrind).")

    def instructions(way, precision, epochs):
        output = tools.run([valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1",
                            tools.bin / "bench_exact", way, precision, epochs], 1)
        return int(re.search(r"Collected : (\d+)", output)[1]), figures(output)["result"]

    for precision in ("fp32", "fp16"):
        counts = {}
        for way in ("hasten", "libtorch"):
            (few, _), (many, result) = (instructions(way, precision, epochs) for epochs in (1, 3))
            counts[way] = (many - few) / 200
            counts[way, "result"] = result
        agree(f"the result in {precision}", [counts["hasten", "result"]], [counts["libtorch", "result"]], 1e-5)
        ratio = counts["hasten"] / counts["libtorch"]
        yield {"name": f"exact: {precision}", "ours": counts["hasten"] / 1e3, "peer": counts["libtorch"] / 1e3,
               "unit": "k instr.", "ratio": ratio, "spread": [ratio, ratio], "rounds": 1, "target": "<= 1.03"}


def ddp_mlp(tools):
    """The same on two processes of one thread."""
    yield from mlp_rows(tools, "ddp_mlp", 2, (3, 3))


def launch_latency(tools):
    """From the launch of two processes to the first finished step, and the memory of a process."""

    def measure(run, program):
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            run(program, folder, processes=2)
            ranks = [json.loads((pathlib.Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]
        if any(rank["world"] != 2 for rank in ranks):
            raise Failed(f"not two processes: {ranks}")
        return {"seconds": max(rank["t"] for rank in ranks) - start, "rss": max(rank["rss"] for rank in ranks),
                "parent_rss": ranks[0]["parent_rss"]}

    measure(tools.peer, "first_step.py")  # fills the page cache
    ours, peer = rounds(5, lambda: measure(tools.ours, "first_step"), lambda: measure(tools.peer, "first_step.py"))
    for what, key, unit, target in (("first step", "seconds", "s", 10), ("peak memory of a rank", "rss", "MiB", 2),
                                    ("peak memory of the launcher", "parent_rss", "MiB", None)):
        yield row(f"launch_latency: {what}", [o[key] for o in ours], [p[key] for p in peer], unit, target,
                  less_is_better=True)


def resnet(tools):
    """ResNet-18, one process on two threads, against Accelerate's default in the same precision. Layouts and kernels
    round differently, and each update carries that on: the first losses show that the work is the same."""
    for precision, launched, tolerance in (("fp32", "no", 1e-3), ("bf16", "bf16", 2e-2)):
        ours, peer = rounds(5, lambda: figures(tools.ours("resnet", precision, threads=2)),
                            lambda: figures(tools.peer("resnet.py", threads=2, precision=launched)))
        agree(f"the loss of the first five steps in {precision}", ours[0]["losses"][:5], peer[0]["losses"][:5], tolerance)
        yield row(f"resnet: {precision}", [o["rate"] for o in ours], [p["rate"] for p in peer], "images/s", 1.1)


BENCHMARKS = {benchmark.__name__: benchmark for benchmark in (mlp, ddp_mlp, launch_latency, resnet, exact)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, help="folder of a build with HASTEN_BENCHMARKS")
    parser.add_argument("--peers", required=True, help="Python of an environment with the peers")
    parser.add_argument("names", nargs="*", help=f"benchmarks, else all: {', '.join(BENCHMARKS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}. There are: {', '.join(BENCHMARKS)}")
    tools = Tools(arguments.build, arguments.peers)
    print(f"{'':40} {'ours':>9} {'peer':>9} {'':9} {'ratio':>6}  {'spread':13} target", file=sys.stderr)
    failed = 0
    for name in arguments.names or BENCHMARKS:
        try:
            for result in BENCHMARKS[name](tools):
                print(json.dumps(result), flush=True)
                spread = "added: {:.2g} us".format(result["added"]) if "added" in result else "{:.2f}-{:.2f}".format(
                    *result["spread"])
                print(f"{result['name']:40} {result['ours']:9.4g} {result['peer']:9.4g} {result['unit']:9} "
                      f"{result['ratio']:6.2f}  {spread:13} {result['target'] or ''}", file=sys.stderr)
        except Failed as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
