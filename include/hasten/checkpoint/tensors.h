#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <hasten/params/parameter_set.h>

namespace hasten::checkpoint {

/// Writes tensors of any device, layout and type to one safetensors file, atomically. Tensors on other
/// devices are copied to the CPU one after another. Throws what `formats::write_safetensors` throws.
void write_tensors(const std::filesystem::path& path, const params::NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});

/// The tensors of a safetensors file, on the CPU and in the file's order. They share the mapped file, which
/// must not be written through them, and keep it alive.
[[nodiscard]] params::NamedTensors read_tensors(const std::filesystem::path& path);

/// Writes a model as `model.safetensors` is written: parameters and buffers under Python's names, a tied
/// parameter once, its other names in the metadata.
void write_model(const std::filesystem::path& path, const params::ParameterSet& model);

/// Fills a model from such a file, or from one that Python wrote. Names and shapes must match: see
/// `ParameterSet::load`.
void read_model(const std::filesystem::path& path, const params::ParameterSet& model);

}  // namespace hasten::checkpoint
