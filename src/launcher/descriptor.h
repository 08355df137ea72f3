#pragma once

#include <unistd.h>
#include <utility>

namespace hasten::launcher {

/// An open descriptor that is closed at the end of its owner's life.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int get() const noexcept { return number_; }
  void reset() noexcept {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

struct Pipe {
  Descriptor read{};
  Descriptor write{};
};

/// A pipe whose ends are closed on exec. Throws `kSystem`.
[[nodiscard]] Pipe open_pipe();

/// Makes reads and writes of `descriptor` return at once.
void set_non_blocking(const Descriptor& descriptor);

}  // namespace hasten::launcher
