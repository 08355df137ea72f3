#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <hasten/train/handles.h>

namespace hasten {

class Accelerator;

struct LocalSgdOptions {
  std::int64_t steps = 8;  ///< updates that each rank makes on its own between two averages
  bool enabled = true;     ///< off: gradients are reduced as always
};

/// Local SGD (Stich, arXiv:1805.09767): while it lives, each rank trains on its own, and after every so many
/// updates parameters and floating-point buffers become their means over the ranks; a last time at its end.
/// Saves exchanges where the network is slow. Optimizer state stays each rank's own. Every rank must make as
/// many steps.
///
///     hasten::LocalSgd local(accelerator, {.steps = 8}, model);
///     for (...) { ...; optimizer.step(); optimizer.zero_grad(); local.step(); }
class LocalSgd {
 public:
  /// Throws `kInvalidArgument` for fewer than 1 step between averages.
  template <class... Modules>
  LocalSgd(Accelerator& accelerator, const LocalSgdOptions& options, const PreparedModel<Modules>&... models)
      : LocalSgd(accelerator, options,
                 std::vector<std::shared_ptr<detail::ModelRecord>>{models.record()...}) {}
  LocalSgd(Accelerator& accelerator, const LocalSgdOptions& options,
           std::vector<std::shared_ptr<detail::ModelRecord>> models);
  /// Averages what has not been; throws what that throws unless an exception passes.
  ~LocalSgd() noexcept(false);
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  /// Counts an update, within an accumulation window nothing. To be called after each `optimizer.step()`.
  void step();

 private:
  void average();

  std::shared_ptr<detail::Run> run_;
  LocalSgdOptions options_;
  std::vector<std::shared_ptr<detail::ModelRecord>> models_;
  std::int64_t steps_ = 0;  // since the last average
  int exceptions_;
};

}  // namespace hasten
