#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hasten {

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78; RFC 3720 appendix B.4) of `bytes`. To go on from
/// earlier bytes give their checksum as `previous`.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0) noexcept;

}  // namespace hasten
