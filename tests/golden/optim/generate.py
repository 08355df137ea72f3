"""Writes the reference values in this folder: what PyTorch's Python optimizers and schedules give.

Needs torch 2.13 and transformers 5.24; run as
    python generate.py
Each file states the inputs beside the values. Floats are what was computed in the dtype that a case names, in double
precision where it names none.
"""
import json
import math
import pathlib

import torch
import transformers.optimization as T
from torch.optim import lr_scheduler

FOLDER = pathlib.Path(__file__).parent


def write(name, about, cases):
    lines = ",\n".join(json.dumps(case) for case in cases)
    (FOLDER / name).write_text('{"about": ' + json.dumps(about) + ',\n "cases": [\n' + lines + "\n]}\n")


def value(shape, scale, phase):
    count = math.prod(shape)
    return (scale * torch.sin(torch.arange(count, dtype=torch.float64) * 0.7 + phase)).reshape(shape)


OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}


# A small network, trained under gradient accumulation.

def network_loss(parameters, x, y):
    w1, b1, w2, b2 = parameters
    hidden = torch.relu(torch.nn.functional.linear(x, w1, b1))
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, w2, b2), y)


def train(name, options, accumulation, divide_by_window, max_norm):
    shapes = [(16, 8), (16,), (3, 16), (3,)]
    parameters = [value(s, 0.3, float(k)).float().double().requires_grad_() for k, s in enumerate(shapes)]
    optimizer = OPTIMIZERS[name](parameters, **options)
    xs, ys = value((50, 8), 1.0, 0.5), torch.arange(50) % 3
    batches = [(xs[i:i + 8], ys[i:i + 8]) for i in range(0, 50, 8)]
    losses, norms = [], []
    for _ in range(3):
        for start in range(0, len(batches), accumulation):
            window = batches[start:start + accumulation]
            for x, y in window:
                loss = network_loss(parameters, x, y)
                (loss / (len(window) if divide_by_window else accumulation)).backward()
                losses.append(loss.item())
            if max_norm is not None:
                norms.append(torch.nn.utils.clip_grad_norm_(parameters, max_norm).item())
            optimizer.step()
            optimizer.zero_grad()
    return dict(optimizer=name, options=options, accumulation_steps=accumulation, divide_by_window=divide_by_window,
                max_norm=max_norm, losses=losses, gradient_norms=norms, final_fc2_bias=parameters[3].tolist())


def trajectories():
    configurations = [
        ("sgd", dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)),
        ("adam", dict(lr=0.01, betas=[0.9, 0.99], weight_decay=0.01)),
        ("adamw", dict(lr=0.01, weight_decay=0.1, amsgrad=True)),
        ("adagrad", dict(lr=0.05)),
        ("rmsprop", dict(lr=0.01, alpha=0.9, momentum=0.5, centered=True)),
    ]
    cases = []
    for name, options in configurations:
        for accumulation, by_window in ((1, False), (3, False), (3, True)):
            for max_norm in (None, 0.05):
                cases.append(train(name, options, accumulation, by_window, max_norm))
    write("trajectories.json",
          "float64. value(shape, scale, phase)[i] = scale * sin(0.7 * i + phase) over the flattened index i. "
          "50 samples: x = value((50, 8), 1, 0.5), y[i] = i mod 3, batches of 8 in order, 3 epochs. The network is "
          "linear 8 to 16, relu, linear 16 to 3; parameter k of fc1.weight, fc1.bias, fc2.weight, fc2.bias is "
          "value(shape, 0.3, k) rounded to float32. Cross entropy, divided by the window's batches or by accumulation_steps; backward; at "
          "the end of a window, which ends with its epoch, clip at max_norm where set, step and zero_grad. losses: each "
          "batch's before division; gradient_norms: one a step.", cases)


# Several groups, each with options of its own, over 20 steps.

GROUP_SHAPES = [[(5, 3), (4,)], [(2, 3, 2, 2), (9,)]]
GROUP_STEPS = 20


def has_gradient(index, step):
    """Parameter 1 starts late and parameter 3 rests every third step."""
    return not (index == 1 and step < 5) and not (index == 3 and step % 3 == 2)


def group_value(shape, scale, phase, dtype):
    if not dtype.is_complex:
        return value(shape, scale, phase).to(dtype)
    return torch.complex(value(shape, scale, phase), value(shape, scale, phase + 0.25)).to(dtype)


def run_groups(name, options, second, dtype):
    groups, parameters = [], []
    for shapes, extra in zip(GROUP_SHAPES, ({}, second)):
        made = [group_value(s, 0.8, len(parameters) + k, dtype).requires_grad_() for k, s in enumerate(shapes)]
        parameters += made
        groups.append(dict(params=made, **extra))
    optimizer = OPTIMIZERS[name](groups, **options)
    for step in range(GROUP_STEPS):
        if step == 10:
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        for index, p in enumerate(parameters):
            p.grad = group_value(p.shape, 0.5, 0.3 * step + index, dtype) if has_gradient(index, step) else None
        optimizer.step()
    flat = [torch.view_as_real(p.detach()) if p.is_complex() else p.detach() for p in parameters]
    return dict(optimizer=name, options=options, second_group=second, dtype=str(dtype).removeprefix("torch."),
                final=[p.flatten().tolist() for p in flat])


def groups():
    configurations = [
        ("sgd", dict(lr=0.1), dict(lr=0.03)),
        ("sgd", dict(lr=0.1, momentum=0.9, dampening=0.3), dict(lr=0.03, weight_decay=0.2)),
        ("sgd", dict(lr=0.05, momentum=0.8, weight_decay=0.05, nesterov=True), dict(momentum=0.6)),
        ("sgd", dict(lr=0.05, momentum=0.8), dict(momentum=0.0)),
        ("adam", dict(lr=0.02), dict(lr=0.005, betas=[0.8, 0.9])),
        ("adam", dict(lr=0.02, weight_decay=0.1, amsgrad=True, eps=1e-4), dict(weight_decay=0.3, amsgrad=False)),
        ("adamw", dict(lr=0.02), dict(lr=0.005, weight_decay=0.5)),
        ("adamw", dict(lr=0.02, betas=[0.7, 0.95], amsgrad=True), dict(eps=1e-3)),
        ("adagrad", dict(lr=0.1), dict(lr=0.02)),
        ("adagrad", dict(lr=0.1, lr_decay=0.1, weight_decay=0.05, initial_accumulator_value=0.2), dict(eps=1e-3)),
        ("rmsprop", dict(lr=0.01), dict(lr=0.002, alpha=0.8)),
        ("rmsprop", dict(lr=0.01, centered=True), dict(eps=1e-3)),
        ("rmsprop", dict(lr=0.01, momentum=0.7, weight_decay=0.1), dict(momentum=0.0)),
        ("rmsprop", dict(lr=0.01, momentum=0.7, centered=True, alpha=0.9), dict(weight_decay=0.2)),
    ]
    cases = []
    for name, options, second in configurations:
        for dtype in (torch.float64, torch.float32, torch.complex128):
            if dtype.is_complex and options.get("initial_accumulator_value"):
                continue
            cases.append(run_groups(name, options, second, dtype))
    write("groups.json",
          "value as in trajectories.json; a complex value is value(shape, scale, phase) + i value(shape, scale, phase "
          "+ 0.25). Four parameters: (5, 3) and (4) in the first group, (2, 3, 2, 2) and (9) in the second, which "
          "overrides the options named; parameter k is value(shape, 0.8, k) and its gradient in step s of 20 is "
          "value(shape, 0.5, 0.3 s + k), but parameter 1 has none in steps 0 to 4, nor parameter 3 where s mod 3 is 2. "
          "Before step 10 each learning rate is multiplied by 0.1. final: the parameters, flattened, real and "
          "imaginary parts in turn.", cases)


# Schedules.

STEPS = 24


def part(name, **options):
    return [name, options]


def schedules():
    S = lr_scheduler
    cycle = dict(max_lr=0.2, total_steps=STEPS, pct_start=0.3, div_factor=25.0, final_div_factor=1e4)
    momentum = dict(base_momentum=0.8, max_momentum=0.92)
    one_cycle = dict(maximum=0.2, total_steps=STEPS, warmup_fraction=0.3, start_divisor=25.0, end_divisor=1e4)
    cyclic = dict(minimum=0.01, maximum=0.1, steps_up=4)

    def wsd(o, lines, **options):
        return T.get_wsd_schedule(o, 4, 6, num_stable_steps=5, warmup_type=lines[0], decay_type=lines[1], **options)

    stable = dict(warmup_steps=4, stable_steps=5, decay_steps=6)
    return [
        ("step", dict(step_size=5, gamma=0.5), lambda o: S.StepLR(o, 5, 0.5)),
        ("multi_step", dict(milestones=[15, 3, 8], gamma=0.1), lambda o: S.MultiStepLR(o, [3, 8, 15], 0.1)),
        ("constant", dict(factor=0.25, total_steps=6), lambda o: S.ConstantLR(o, 0.25, 6)),
        ("linear", dict(start_factor=0.1, end_factor=0.9, total_steps=8), lambda o: S.LinearLR(o, 0.1, 0.9, 8)),
        ("exponential", dict(gamma=0.9), lambda o: S.ExponentialLR(o, 0.9)),
        ("polynomial", dict(total_steps=12, power=2.0), lambda o: S.PolynomialLR(o, 12, 2.0)),
        ("cosine", dict(total_steps=10, minimum=0.001), lambda o: S.CosineAnnealingLR(o, 10, 0.001)),
        ("cosine_restarts", dict(first_cycle=5, growth=2, minimum=0.01),
         lambda o: S.CosineAnnealingWarmRestarts(o, 5, 2, 0.01)),
        ("cosine_restarts", dict(first_cycle=4, growth=1, minimum=0.0),
         lambda o: S.CosineAnnealingWarmRestarts(o, 4, 1, 0.0)),
        ("one_cycle", one_cycle, lambda o: S.OneCycleLR(o, cycle_momentum=False, **cycle)),
        ("one_cycle", dict(one_cycle, linear=True, momentum=[0.8, 0.92]),
         lambda o: S.OneCycleLR(o, anneal_strategy="linear", **momentum, **cycle)),
        ("one_cycle", dict(one_cycle, three_phases=True, momentum=[0.8, 0.92]),
         lambda o: S.OneCycleLR(o, three_phase=True, **momentum, **cycle)),
        ("cyclic", dict(cyclic, mode="triangular"),
         lambda o: S.CyclicLR(o, 0.01, 0.1, 4, mode="triangular", cycle_momentum=False)),
        ("cyclic", dict(cyclic, mode="triangular2"),
         lambda o: S.CyclicLR(o, 0.01, 0.1, 4, mode="triangular2", cycle_momentum=False)),
        ("cyclic", dict(cyclic, mode="exp_range", gamma=0.95, steps_down=7, momentum=[0.8, 0.92]),
         lambda o: S.CyclicLR(o, 0.01, 0.1, 4, 7, mode="exp_range", gamma=0.95, **momentum)),
        ("constant_with_warmup", dict(warmup_steps=4), lambda o: T.get_constant_schedule_with_warmup(o, 4)),
        ("linear_with_warmup", dict(warmup_steps=4, total_steps=20),
         lambda o: T.get_linear_schedule_with_warmup(o, 4, 20)),
        ("cosine_with_warmup", dict(warmup_steps=4, total_steps=20, minimum_ratio=0.0, cycles=0.5),
         lambda o: T.get_cosine_schedule_with_warmup(o, 4, 20)),
        ("cosine_with_warmup", dict(warmup_steps=4, total_steps=STEPS, minimum_ratio=0.1, cycles=1.5),
         lambda o: T.get_cosine_with_min_lr_schedule_with_warmup(o, 4, STEPS, num_cycles=1.5, min_lr_rate=0.1)),
        ("cosine_restarts_with_warmup", dict(warmup_steps=4, total_steps=20, cycles=3),
         lambda o: T.get_cosine_with_hard_restarts_schedule_with_warmup(o, 4, 20, 3)),
        ("polynomial_with_warmup", dict(warmup_steps=4, total_steps=20, minimum_ratio=0.1, power=2.0),
         lambda o: T.get_polynomial_decay_schedule_with_warmup(o, 4, 20, lr_end=0.01, power=2.0)),
        ("inverse_sqrt", dict(warmup_steps=4), lambda o: T.get_inverse_sqrt_schedule(o, 4)),
        ("warmup_stable_decay", dict(stable, lines=["linear", "cosine"], minimum_ratio=0.0, cycles=0.5),
         lambda o: wsd(o, ("linear", "cosine"))),
        ("warmup_stable_decay", dict(stable, lines=["cosine", "1-sqrt"], minimum_ratio=0.1, cycles=0.5),
         lambda o: wsd(o, ("cosine", "1-sqrt"), min_lr_ratio=0.1)),
        ("warmup_stable_decay", dict(stable, lines=["1-sqrt", "linear"], minimum_ratio=0.2, cycles=0.5),
         lambda o: wsd(o, ("1-sqrt", "linear"), min_lr_ratio=0.2)),
        ("sequential",
         dict(parts=[part("linear", start_factor=0.1, end_factor=1.0, total_steps=5), part("exponential", gamma=0.9),
                     part("cosine", total_steps=8, minimum=0.0)], milestones=[5, 12]),
         lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1.0, 5), S.ExponentialLR(o, 0.9), S.CosineAnnealingLR(o, 8)],
                                  [5, 12])),
        ("chained",
         dict(parts=[part("constant", factor=0.5, total_steps=4), part("exponential", gamma=0.9),
                     part("multi_step", milestones=[6, 10], gamma=0.5)]),
         lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.5, 4), S.ExponentialLR(o, 0.9), S.MultiStepLR(o, [6, 10], 0.5)],
                                      optimizer=o)),
    ]


def schedulers():
    cases = []
    for name, options, make in schedules():
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = torch.optim.SGD([dict(params=[parameters[0]]), dict(params=[parameters[1]], lr=0.3)], lr=0.1,
                                    momentum=0.5)
        scheduler = make(optimizer)
        rates, momenta = [[], []], []
        for step in range(STEPS):
            for group, history in zip(optimizer.param_groups, rates):
                history.append(group["lr"])
            momenta.append(optimizer.param_groups[0]["momentum"])
            if step + 1 < STEPS:
                optimizer.step()
                scheduler.step()
        cases.append(dict(scheduler=name, options=options, rates=rates, momenta=momenta))
    write("schedulers.json",
          "Two groups with learning rates 0.1 and 0.3, SGD's momentum 0.5. rates[g][t] is the rate of group g in the "
          "optimizer's step t, momenta[t] the momentum.", cases)


# A schedule that follows a metric.

METRICS = [1.0, 0.9, 0.9, 0.91, float("nan"), 0.8999, 0.95, 0.7, 0.7, 0.71, 0.69, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.2]


def plateaus():
    cases = []
    for options in (dict(patience=1, factor=0.5),
                    dict(patience=0, factor=0.1, min_lr=0.005),
                    dict(patience=1, factor=0.5, cooldown=2, min_lr=[0.01, 0.1]),
                    dict(patience=2, factor=0.5, threshold=0.05, threshold_mode="abs"),
                    dict(patience=1, factor=0.5, mode="max", threshold=0.01),
                    dict(patience=1, factor=0.5, mode="max", threshold=0.1, threshold_mode="abs", eps=0.02)):
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = torch.optim.SGD([dict(params=[parameters[0]]), dict(params=[parameters[1]], lr=0.3)], lr=0.1)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        rates = []
        for metric in METRICS:
            scheduler.step(metric)
            rates.append([group["lr"] for group in optimizer.param_groups])
        cases.append(dict(options=options, metrics=[None if m != m else m for m in METRICS], rates=rates))
    write("plateaus.json", "Two groups with learning rates 0.1 and 0.3. rates[t] are the groups' after metrics[t], of "
          "which null is NaN.", cases)


if __name__ == "__main__":
    trajectories()
    groups()
    schedulers()
    plateaus()
