"""Writes grad_scaler.json: what PyTorch's GradScaler does on patterns of overflows. Run: python generate.py"""
import json
import math
import pathlib

import torch

PATTERNS = ["....", "x..", "..x.....x", "xxxx....", "....x...........", "x" * 20]

cases = []
for pattern in PATTERNS:
    for interval in (2, 4):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        options = dict(init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=interval)
        scaler = torch.amp.GradScaler("cpu", **options)
        case = dict(overflow=[c == "x" for c in pattern], **options, scale_after=[], step_skipped=[], parameter_after=[])
        for overflow in case["overflow"]:
            parameter.grad = None
            scaler.scale((parameter * 0.125).sum()).backward()
            if overflow:
                parameter.grad[1] = math.inf
            before = parameter.detach().clone()
            scaler.step(optimizer)
            scaler.update()
            case["scale_after"].append(scaler.get_scale())
            case["step_skipped"].append(bool(torch.equal(before, parameter.detach())))
            case["parameter_after"].append(parameter.detach()[0].item())
        cases.append(case)

about = ("Three parameters at 1, loss = 0.125 * sum, SGD lr 0.5; overflow[i] puts an infinity in step i's gradient. "
         "scale_after[i] is the loss scale after update i.")
pathlib.Path(__file__).with_name("grad_scaler.json").write_text(
    '{"about": ' + json.dumps(about) + ',\n "cases": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]}\n")
