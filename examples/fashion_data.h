#pragma once

#include <filesystem>

#include <hasten/data/images.h>
#include <hasten/hasten.h>

/// The data that fashion.cpp and fashion_plain.cpp share: Fashion-MNIST, shuffled and augmented.
namespace fashion {

/// Where Debian's package dataset-fashion-mnist lies; the programs take another folder as their argument.
inline std::filesystem::path folder(int argc, char** argv) {
  return argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist";
}

inline auto training_batches(const std::filesystem::path& folder) {
  return hasten::data::Loader(
      hasten::data::fashion_mnist(folder, /*train=*/true, {.crop_padding = 2, .flip = true}),
      {.batch_size = 128, .shuffle = true, .seed = 1, .drop_last = true, .split_batches = true});
}

inline auto test_batches(const std::filesystem::path& folder) {
  return hasten::data::Loader(hasten::data::fashion_mnist(folder, /*train=*/false), {.batch_size = 500});
}

}  // namespace fashion
