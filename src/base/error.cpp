#include <system_error>

#include <hasten/base/error.h>

namespace hasten {

void fail_system(int error_number, std::string_view operation, std::string_view message) {
  fail(ErrorCode::kSystem, operation, message, ": ", std::generic_category().message(error_number), ".");
}

}  // namespace hasten
