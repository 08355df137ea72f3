#pragma once

#include <algorithm>
#include <cstddef>
#include <gtest/gtest.h>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <hasten/base/error.h>

namespace hasten::test {

/// Calls `parse` with thousands of damaged copies of a valid file: bits flipped, bytes replaced, parts cut
/// out, doubled or cut off, numbers set to extremes. Each must parse or throw `Error`; anything else fails
/// the test, and the sanitizers watch for reads outside. `head` is how many of the first bytes take most of
/// the damage.
template <class Parse>
void survive_mutations(const std::string& valid, std::size_t head, Parse parse, int count = 4000) {
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t limit) { return limit == 0 ? 0 : random() % limit; };
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::string bytes = valid;
    for (std::size_t damage = 1 + below(3); damage > 0 && !bytes.empty(); --damage) {
      const std::size_t at = below(below(4) == 0 ? bytes.size() : std::min(head, bytes.size()));
      switch (below(7)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 1:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 2:
          bytes.erase(at, 1 + below(8));
          break;
        case 3:
          bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(16)));
          break;
        case 4:
          bytes.resize(below(bytes.size()));
          break;
        case 5:
          bytes[at] = "0123456789-,[]{}()\":'<>|"[below(24)];
          break;
        default:  // a run of extreme bytes: lengths, sizes and offsets near their limits
          for (std::size_t j = at; j < std::min(bytes.size(), at + 8); ++j)
            bytes[j] = below(2) == 0 ? '\x7f' : '\xff';
      }
    }
    try {
      // A copy of exactly this size on the heap, so that a read past its end is seen.
      const std::vector<char> exact(bytes.begin(), bytes.end());
      parse(std::as_bytes(std::span(exact)));
    } catch (const Error& error) {
      ++refused;
      EXPECT_LT(std::string(error.what()).size(), 2000U);
    }
  }
  EXPECT_GT(refused, count / 10);
  EXPECT_LT(refused, count);
}

}  // namespace hasten::test
