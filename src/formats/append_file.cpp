#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <hasten/base/error.h>
#include <hasten/formats/append_file.h>

namespace hasten::formats {
namespace {

constexpr std::string_view kOperation = "AppendFile";
constexpr std::size_t kMostWaiting = 64 * 1024;

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, Start start) : path_(std::move(path)), descriptor_(-1) {
  std::error_code failure;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), failure);
  if (failure)
    fail_system(failure.value(), kOperation, "cannot make the folder '" + path_.parent_path().string() + "'");
  const int exclusive = start == Start::kNew ? O_EXCL : 0;
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | exclusive, 0666);
  if (descriptor_ < 0) fail_system(errno, kOperation, "cannot open '" + path_.string() + "' for writing");
}

AppendFile::~AppendFile() {
  try {
    flush();
  } catch (const Error&) {  // a destructor has no one to tell; who must know calls flush()
  }
  ::close(descriptor_);
}

void AppendFile::append(std::string_view bytes) {
  waiting_ += bytes;
  if (waiting_.size() >= kMostWaiting) flush();
}

void AppendFile::flush() {
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t count = ::write(descriptor_, waiting_.data() + done, waiting_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int failure = errno;
      waiting_.erase(0, done);
      fail_system(failure, kOperation, "cannot write '" + path_.string() + "'");
    }
    done += static_cast<std::size_t>(count);
  }
  waiting_.clear();
}

}  // namespace hasten::formats
