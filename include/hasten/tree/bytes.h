#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include <hasten/base/error.h>
#include <hasten/tree/fields.h>
#include <hasten/tree/tree.h>

/// Any batch (see `tree`), and any structure of numbers, strings, containers and tensors, as bytes and back,
/// between processes of one program on machines of one byte order.
namespace hasten::tree {

namespace detail {

void write_tensor(std::string& out, const at::Tensor& tensor);
[[nodiscard]] at::Tensor read_tensor(std::string_view& in);

inline void write_raw(std::string& out, const void* data, std::size_t size) {
  out.append(static_cast<const char*>(data), size);
}

/// Takes bytes from the front. Throws `kCorruptData` when there are fewer.
inline std::string_view take(std::string_view& in, std::size_t size) {
  require(in.size() >= size, ErrorCode::kCorruptData, "from_bytes", "the message ends ", size - in.size(),
          " bytes too early.");
  const std::string_view taken = in.substr(0, size);
  in.remove_prefix(size);
  return taken;
}

template <class T>
T read_raw(std::string_view& in) {
  T value;
  std::memcpy(&value, take(in, sizeof(T)).data(), sizeof(T));
  return value;
}

inline void write_size(std::string& out, std::size_t size) {
  const auto wide = static_cast<std::uint64_t>(size);
  write_raw(out, &wide, sizeof wide);
}

/// The number of elements that follow, each of at least `least` bytes.
inline std::size_t read_size(std::string_view& in, std::size_t least) {
  const auto size = read_raw<std::uint64_t>(in);
  require(size <= in.size() / least, ErrorCode::kCorruptData, "from_bytes", "the message announces ", size,
          " elements, but has ", in.size(), " bytes left.");
  return static_cast<std::size_t>(size);
}

template <class T>
void write(std::string& out, const T& value);

template <class T>
void read(std::string_view& in, T& value);

template <class T>
concept Raw = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <class T>
void write(std::string& out, const T& value) {
  if constexpr (std::same_as<T, at::Tensor>) {
    write_tensor(out, value);
  } else if constexpr (Raw<T>) {
    write_raw(out, &value, sizeof value);
  } else if constexpr (std::same_as<T, std::string>) {
    write_size(out, value.size());
    out += value;
  } else if constexpr (kIsVector<T>) {
    write_size(out, value.size());
    for (const auto& element : value) write<typename T::value_type>(out, element);
  } else if constexpr (kIsMap<T>) {
    write_size(out, value.size());
    for (const auto& [key, element] : value) {
      write(out, key);
      write(out, element);
    }
  } else if constexpr (kIsOptional<T>) {
    write(out, value.has_value());
    if (value) write(out, *value);
  } else {
    static_assert(HasFields<T>,
                  "hasten: this type cannot be sent to other processes; use numbers, strings, tensors, "
                  "containers and structs of them, or specialise hasten::tree::Fields for it");
    std::apply([&](const auto&... field) { (write(out, field), ...); }, fields_of(value));
  }
}

template <class T>
void read(std::string_view& in, T& value) {
  if constexpr (std::same_as<T, at::Tensor>) {
    value = read_tensor(in);
  } else if constexpr (Raw<T>) {
    value = read_raw<T>(in);
  } else if constexpr (std::same_as<T, std::string>) {
    value = take(in, read_size(in, 1));
  } else if constexpr (kIsVector<T>) {
    // Elements without bytes of their own are not counted against the rest of the message.
    const std::size_t size = read_size(in, 1);
    if constexpr (requires { value.resize(size); }) {
      value.clear();
      for (std::size_t i = 0; i < size; ++i) {
        typename T::value_type element{};
        read(in, element);
        value.push_back(std::move(element));
      }
    } else {
      require(size == value.size(), ErrorCode::kCorruptData, "from_bytes", "an array of ", value.size(),
              " elements was sent as ", size, ".");
      for (auto& element : value) read(in, element);
    }
  } else if constexpr (kIsMap<T>) {
    value.clear();
    for (std::size_t left = read_size(in, 1); left > 0; --left) {
      typename T::key_type key{};
      read(in, key);
      read(in, value[std::move(key)]);
    }
  } else if constexpr (kIsOptional<T>) {
    value.reset();
    if (read_raw<bool>(in)) read(in, value.emplace());
  } else {
    std::apply([&](auto&... field) { (read(in, field), ...); }, fields_of(value));
  }
}

}  // namespace detail

/// The value as bytes. Tensors may be of any dtype but quantised ones and on any device.
template <class T>
[[nodiscard]] std::string to_bytes(const T& value) {
  std::string out;
  detail::write(out, value);
  return out;
}

/// The value of `to_bytes`, with its tensors on the CPU. Throws `kCorruptData` for bytes of another type.
template <class T>
[[nodiscard]] T from_bytes(std::string_view bytes) {
  T value{};
  detail::read(bytes, value);
  require(bytes.empty(), ErrorCode::kCorruptData, "from_bytes", bytes.size(),
          " bytes are left over. All processes must run the same program.");
  return value;
}

}  // namespace hasten::tree
