#include <hasten/base/version.h>

namespace hasten {

const char* version() noexcept {
  return HASTEN_VERSION;
}

}  // namespace hasten
