#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <hasten/data/collate.h>
#include <hasten/data/dataset.h>
#include <hasten/data/loader_base.h>
#include <hasten/data/loader_options.h>
#include <hasten/device/device.h>
#include <hasten/tree/tree.h>

namespace hasten::data {

namespace detail {
[[nodiscard]] at::Tensor pin(const at::Tensor& tensor);
[[noreturn]] void fail_copies(int workers);
}  // namespace detail

/// Batches of a dataset, shuffled, divided among processes, made ahead by worker threads:
///
///     Loader train(dataset, {.batch_size = 128, .shuffle = true, .workers = 2});
///     for (auto& [images, labels] : train) ...
///
/// The dataset (`dataset.h` says what one is) is taken by value, or as a pointer or `std::ref`, which share
/// it. One loop at a time runs over a loader, and may be left at any point. Two loaders may share a dataset.
template <class Dataset, class Collate = Stack>
class Loader final : public LoaderBase {
  using Source = detail::DatasetOf<Dataset>;
  static_assert(Readable<Source> || Readable<const Source>,
                "hasten: a dataset needs size() and get(index) or get_batch(indices)");

  /// Reading that is const is safe from several threads, by the standard library's convention.
  static constexpr bool kConstRead = Readable<const Source>;
  static constexpr bool kShared = kConstRead || detail::kIsHandle<Dataset>;
  using Reader = std::conditional_t<kConstRead, const Source, Source>;

 public:
  using Batch = detail::BatchOf<Reader, Collate>;

  /// Throws `kInvalidArgument` for options out of range.
  explicit Loader(Dataset dataset, LoaderOptions options = {}, Collate collate = {})
      : LoaderBase(detail::size_of(detail::dataset_of(dataset)), options),
        dataset_(std::move(dataset)),
        collate_(std::move(collate)),
        slots_(slots()) {
    if constexpr (!kShared && std::is_copy_constructible_v<Dataset>) {
      for (int worker = 0; worker < options.workers; ++worker) copies_.push_back(dataset_);
    } else if constexpr (!kShared) {
      if (options.workers > 1) detail::fail_copies(options.workers);
    }
  }

  ~Loader() override { stop(); }

  /// Goes through the batches once. Leaving the loop destroys it, which ends the pass.
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Iterator(Iterator&& other) noexcept
        : anchor_(std::move(other.anchor_)),
          pass_(other.pass_),
          batch_(std::exchange(other.batch_, nullptr)) {}
    Iterator& operator=(Iterator&& other) noexcept {
      Iterator taken(std::move(other));
      std::swap(anchor_, taken.anchor_);
      std::swap(pass_, taken.pass_);
      std::swap(batch_, taken.batch_);
      return *this;
    }
    ~Iterator() {
      if (batch_ != nullptr && *anchor_ != nullptr) loader().leave(pass_);
    }

    /// The batch, which the loop may change or move from. It lives until the next one is asked for.
    [[nodiscard]] Batch& operator*() const noexcept { return *batch_; }
    [[nodiscard]] Batch* operator->() const noexcept { return batch_; }

    Iterator& operator++() {
      if (*anchor_ == nullptr) {
        batch_ = nullptr;
        fail(ErrorCode::kFailedPrecondition, "data::Loader", "the loader of this iterator was destroyed.");
      }
      Loader& owner = loader();
      batch_ = nullptr;
      owner.next(pass_);
      batch_ = owner.current_batch();
      return *this;
    }
    void operator++(int) { ++*this; }

    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) noexcept {
      return iterator.batch_ == nullptr;
    }

   private:
    friend class Loader;
    explicit Iterator(Loader& loader)
        : anchor_(loader.anchor()), pass_(loader.begin_pass()), batch_(loader.current_batch()) {}
    Loader& loader() const { return static_cast<Loader&>(**anchor_); }

    std::shared_ptr<LoaderBase* const> anchor_;
    std::uint64_t pass_;
    Batch* batch_;
  };

  /// Begins a pass and waits for its first batch. Throws `kFailedPrecondition` when one runs, and, as `++`
  /// does, an `Error` that names the samples when the dataset throws.
  [[nodiscard]] Iterator begin() { return Iterator(*this); }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

  [[nodiscard]] const Source& dataset() const noexcept { return detail::dataset_of(dataset_); }

 private:
  void make(std::size_t slot, int worker, Indices indices, const BatchContext& context, bool pin,
            std::size_t& at) override {
    Reader& reader = this->reader(worker);
    slots_[slot].emplace(detail::finish(detail::read(reader, indices, context, at), collate_));
    if (pin) tree::for_each(*slots_[slot], [](at::Tensor& tensor) { tensor = detail::pin(tensor); });
  }

  void move(std::size_t slot, const at::Device& device, bool non_blocking) override {
    tree::for_each(*slots_[slot],
                   [&](at::Tensor& tensor) { tensor = device::copy_to(tensor, device, non_blocking); });
  }

  void clear(std::size_t slot) noexcept override { slots_[slot].reset(); }

  Reader& reader(int worker) {
    if constexpr (!kShared && std::is_copy_constructible_v<Dataset>)
      if (worker >= 0) return detail::dataset_of(copies_[static_cast<std::size_t>(worker)]);
    return detail::dataset_of(dataset_);
  }

  Batch* current_batch() noexcept { return current() == kNoSlot ? nullptr : &*slots_[current()]; }

  Dataset dataset_;
  Collate collate_;
  std::vector<Dataset> copies_;
  std::vector<std::optional<Batch>> slots_;
};

}  // namespace hasten::data
