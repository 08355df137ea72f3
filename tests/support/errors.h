#pragma once

#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <utility>

#include <hasten/base/error.h>

namespace hasten::test {

/// The code and the text of the `Error` that `call` throws. Throwing nothing is a failure of the test.
inline std::pair<ErrorCode, std::string> error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::kSystem, ""};
}

/// The text of that `Error`.
inline std::string message_of(const std::function<void()>& call) {
  return error_of(call).second;
}

/// The same, where its code must be this one.
inline std::string message_of(const std::function<void()>& call, ErrorCode code) {
  const auto [found, text] = error_of(call);
  EXPECT_EQ(found, code) << text;
  return text;
}

}  // namespace hasten::test
