#include "publish/version_writer.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file_io.h"
#include "publish/chain.h"

namespace segue::publish {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_io(const std::string& path, const char* what, int error) {
  fail(ErrorCode::kIo,
       fmt::format("{}: cannot be {}: {}", path, what, std::generic_category().message(error)));
}

base::Descriptor lock(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kLock);
  base::Descriptor file(::open(path.c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (file.get() < 0) fail_io(path, "opened", errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("another process is publishing into {}; wait for it, or choose another folder "
                     "with --to",
                     folder));
  }
  return file;
}

void clear_temporaries(const std::string& folder) {
  std::vector<fs::path> left;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(kTemporaryPrefix)) left.push_back(it->path());
  }
  for (const fs::path& path : left) {
    fs::remove_all(path, error);
    if (error) fail_io(path.string(), "removed", error.value());
  }
}

std::string folder_made(const std::string& path) {
  if (base::exists(path)) return path;
  base::make_folders(path);
  base::sync_folder(base::folder_of(path));
  return path;
}

}  // namespace

OwnedFolder::OwnedFolder(const std::string& path) : path_(folder_made(path)), lock_(lock(path)) {
  clear_temporaries(path_);
}

void OwnedFolder::switch_to(int64_t number) const {
  const std::string made = fmt::format("{}/{}{}", path_, kTemporaryPrefix, kCurrent);
  // A name beside it, so that the folder can be moved.
  if (::symlink(version_name(number).c_str(), made.c_str()) != 0) fail_io(made, "made", errno);
  base::rename_path(made, fmt::format("{}/{}", path_, kCurrent));
  base::sync_folder(path_);
}

VersionWriter::VersionWriter(const OwnedFolder& owned, const std::string& folder, int64_t number)
    : owned_(owned),
      folder_(folder),
      number_(number),
      temporary_(fmt::format("{}/{}{}", folder, kTemporaryPrefix, version_name(number))) {
  base::make_folders(temporary_);
}

VersionWriter::~VersionWriter() {
  std::error_code ignored;  // the next publisher tries again
  fs::remove_all(temporary_, ignored);
}

void VersionWriter::commit(const VersionManifest& manifest) {
  base::OutputFile file(fmt::format("{}/{}", temporary_, kVersionManifest));
  const std::string text = manifest.text();
  file.write(text.data(), text.size());
  file.close();
  base::sync_folder(temporary_);
  base::rename_path(temporary_, version_path(folder_, number_));
  base::sync_folder(folder_);
  owned_.switch_to(number_);
}

}  // namespace segue::publish
