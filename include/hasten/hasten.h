#pragma once

/// All that a training program needs but its model: `hasten/models/...` and `torch/torch.h` are separate.

#include <hasten/base/once.h>
#include <hasten/data/loader.h>
#include <hasten/data/tensor_dataset.h>
#include <hasten/optim/reduce_on_plateau.h>
#include <hasten/optim/schedulers.h>
#include <hasten/train/accelerator.h>
#include <hasten/train/launch.h>
#include <hasten/train/logger.h>
