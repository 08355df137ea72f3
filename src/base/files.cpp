#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <hasten/base/error.h>
#include <hasten/base/files.h>

namespace hasten::files {
namespace {

/// Closes a descriptor at the end of a scope.
struct Descriptor {
  explicit Descriptor(int number) : value(number) {}
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value;
};

int open_for_reading(const std::filesystem::path& path, std::string_view operation) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    require(errno != ENOENT, ErrorCode::kNotFound, operation, "there is no file '", path.string(), "'.");
    fail_system(errno, operation, "cannot open '" + path.string() + "'");
  }
  return descriptor;
}

std::size_t size_of(int descriptor, const std::filesystem::path& path, std::string_view operation) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0)
    fail_system(errno, operation, "cannot examine '" + path.string() + "'");
  require(S_ISREG(status.st_mode), ErrorCode::kInvalidArgument, operation, "'", path.string(),
          "' is not a regular file.");
  return static_cast<std::size_t>(status.st_size);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

std::string read(const std::filesystem::path& path) {
  const Descriptor file(open_for_reading(path, "files::read"));
  std::string content(size_of(file.value, path, "files::read"), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = ::read(file.value, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_system(errno, "files::read", "cannot read '" + path.string() + "'");
    if (count == 0) break;  // cut while being read: the caller's parser reports what is missing
    done += static_cast<std::size_t>(count);
  }
  content.resize(done);
  return content;
}

void write_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), descriptor_(-1) {
  std::string name = (folder_of(path_) / (".hasten-" + path_.filename().string() + "-XXXXXX")).string();
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0)
    fail_system(errno, "files::AtomicFile", "cannot create a file for '" + path_.string() + "'");
  temporary_ = name;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(descriptor_, 0666 & ~mask);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_system(errno, "files::AtomicFile", "cannot write '" + path_.string() + "'");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0)
    fail_system(errno, "files::AtomicFile", "cannot sync '" + path_.string() + "'");
  if (::close(std::exchange(descriptor_, -1)) != 0)
    fail_system(errno, "files::AtomicFile", "cannot close '" + path_.string() + "'");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail_system(errno, "files::AtomicFile", "cannot rename a finished file to '" + path_.string() + "'");
  temporary_.clear();
  sync_folder(folder_of(path_));
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.value < 0) fail_system(errno, "files::sync_folder", "cannot open '" + folder.string() + "'");
  // Some file systems cannot sync a folder and say so with EINVAL; there is nothing to do there.
  if (::fsync(opened.value) != 0 && errno != EINVAL)
    fail_system(errno, "files::sync_folder", "cannot sync '" + folder.string() + "'");
}

std::shared_ptr<const Map> Map::open(const std::filesystem::path& path) {
  const Descriptor file(open_for_reading(path, "files::Map"));
  const std::size_t size = size_of(file.value, path, "files::Map");
  if (size == 0) return std::shared_ptr<const Map>(new Map(path, nullptr, 0));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.value, 0);
  if (data == MAP_FAILED) fail_system(errno, "files::Map", "cannot map '" + path.string() + "'");
  return std::shared_ptr<const Map>(new Map(path, static_cast<const std::byte*>(data), size));
}

Map::Map(std::filesystem::path path, const std::byte* data, std::size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

Map::~Map() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace hasten::files
